/* The functions that MRC does not have. Each fails with EOPNOTSUPP; its first call prints one line with its name.
 *
 * Every function of libibverbs that takes an object of this library must be defined here: the real function would
 * use private fields that the object lacks. The functions are declared without arguments, which they ignore. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define MOST_TOLD 64

int refuse(const char *name, const char *why);

int refuse(const char *name, const char *why)
{
    static const char *told[MOST_TOLD];

    for (int i = 0; i < MOST_TOLD; i++) {
        const char *empty = NULL;
        if (__atomic_compare_exchange_n(&told[i], &empty, name, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
            fprintf(stderr, "mrclab: %s is not supported: %s\n", name, why);
            break;
        }
        if (!strcmp(empty, name))
            break;
    }
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

#define REFUSED_INT(name, why)                                                                                 \
    EXPORT int name(void);                                                                                     \
    int name(void) { return refuse(#name, why); }
/* For functions that return -1 and set errno, unlike most functions of libibverbs. */
#define REFUSED_MINUS(name, why)                                                                               \
    EXPORT int name(void);                                                                                     \
    int name(void)                                                                                             \
    {                                                                                                          \
        refuse(#name, why);                                                                                    \
        return -1;                                                                                             \
    }
#define REFUSED_POINTER(name, why)                                                                             \
    EXPORT void *name(void);                                                                                   \
    void *name(void)                                                                                           \
    {                                                                                                          \
        refuse(#name, why);                                                                                    \
        return NULL;                                                                                           \
    }
#define REFUSED_VOID(name, why)                                                                                \
    EXPORT void name(void);                                                                                    \
    void name(void) { refuse(#name, why); }

#define NO_SRQ "MRC has no shared receive queues"
#define NO_AH "MRC has no datagrams"
#define NO_MULTICAST "MRC has no multicast"
#define NO_SHARING "an object of another process cannot be used here"
#define NO_CM "programs exchange attributes themselves, over TCP; there is no RDMA-CM"
#define NO_CHANGE "it cannot be changed once it is made"

REFUSED_POINTER(ibv_create_srq, NO_SRQ)
REFUSED_INT(ibv_modify_srq, NO_SRQ)
REFUSED_INT(ibv_query_srq, NO_SRQ)
REFUSED_INT(ibv_destroy_srq, NO_SRQ)
REFUSED_POINTER(ibv_create_ah, NO_AH)
REFUSED_POINTER(ibv_create_ah_from_wc, NO_AH)
REFUSED_MINUS(ibv_init_ah_from_wc, NO_AH)
REFUSED_INT(ibv_destroy_ah, NO_AH)
REFUSED_INT(ibv_attach_mcast, NO_MULTICAST)
REFUSED_INT(ibv_detach_mcast, NO_MULTICAST)
REFUSED_POINTER(ibv_import_device, NO_SHARING)
REFUSED_POINTER(ibv_import_pd, NO_SHARING)
REFUSED_POINTER(ibv_import_mr, NO_SHARING)
REFUSED_POINTER(ibv_import_dm, NO_SHARING)
REFUSED_VOID(ibv_unimport_pd, NO_SHARING)
REFUSED_VOID(ibv_unimport_mr, NO_SHARING)
REFUSED_VOID(ibv_unimport_dm, NO_SHARING)
REFUSED_MINUS(ibv_rereg_mr, NO_CHANGE) /* -1 is IBV_REREG_MR_ERR_INPUT: the region is as before */
REFUSED_INT(ibv_resize_cq, NO_CHANGE)
REFUSED_INT(ibv_set_ece, "there are no vendor options")
REFUSED_INT(ibv_query_ece, "there are no vendor options")
REFUSED_INT(ibv_resolve_eth_l2_from_gid, NO_AH)
REFUSED_POINTER(rdma_create_event_channel, NO_CM)
REFUSED_MINUS(rdma_create_id, NO_CM)
REFUSED_MINUS(rdma_create_ep, NO_CM)

/* Programs call this first, and then ibv_reg_mr. So this function fails without printing a line. */
EXPORT void *ibv_reg_dmabuf_mr(void);
void *ibv_reg_dmabuf_mr(void)
{
    errno = EOPNOTSUPP;
    return NULL;
}
