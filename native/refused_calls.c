/* The functions that MRC does not have and that programs call through a context. They fail as in refused.c. */
#define _GNU_SOURCE
#include "common.h"

#define NO_SRQ "MRC has no shared receive queues"
#define NO_XRC "MRC has reliable connections alone"

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
    refuse("ibv_alloc_mw", "MRC has no memory windows");
    return NULL;
}

static struct ibv_xrcd *open_xrcd(struct ibv_context *context, struct ibv_xrcd_init_attr *attr)
{
    refuse("ibv_open_xrcd", NO_XRC);
    return NULL;
}

static struct ibv_srq *create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr)
{
    refuse("ibv_create_srq_ex", NO_SRQ);
    return NULL;
}

static struct ibv_qp *open_qp(struct ibv_context *context, struct ibv_qp_open_attr *attr)
{
    refuse("ibv_open_qp", NO_XRC);
    return NULL;
}

static struct ibv_dm *alloc_dm(struct ibv_context *context, struct ibv_alloc_dm_attr *attr)
{
    refuse("ibv_alloc_dm", "this NIC has no memory of its own");
    return NULL;
}

static struct ibv_cq_ex *create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
    refuse("ibv_create_cq_ex", "use ibv_create_cq and ibv_poll_cq");
    return NULL;
}

void refuse_rest(struct verbs_context *verbs)
{
    verbs->context.ops.alloc_mw = alloc_mw;
    verbs->open_xrcd = open_xrcd;
    verbs->create_srq_ex = create_srq_ex;
    verbs->open_qp = open_qp;
    verbs->alloc_dm = alloc_dm;
    verbs->create_cq_ex = create_cq_ex;
}
