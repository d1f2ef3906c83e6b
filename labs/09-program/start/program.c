/* Runs transfer.c between two hosts of a fabric (you need not change it):
 *
 *   ./transfer receive PORT               ./transfer send PORT HOST [pause]
 *
 * The two meet over TCP, tell each other their queue pairs and memory, and transfer 2 x 32 MiB over four queue pairs. With
 * `pause`, the sender says "half" after the first half and goes on with a line of its input: time to cut something. */
#include "transfer.h"
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define QPS 4
#define DEPTH 16
#define RECEIVES 640 /* on each queue pair, one for each message: an immediate without a receive is an error */
#define LENGTH (32u << 20)
#define MESSAGE 65536u
#define NEED(condition)                                                                                         \
    do {                                                                                                        \
        if (!(condition)) {                                                                                     \
            fprintf(stderr, "program.c, line %d: %s: %s\n", __LINE__, #condition, strerror(errno));             \
            exit(2);                                                                                            \
        }                                                                                                       \
    } while (0)

/* More of the MRC API: what makes a queue pair. */
struct mrc_context;
struct mrc_channel;
struct mrc_attributes;
struct mrc_context_options {
    uint32_t api_version, vendor_version;
};
struct mrc_qp_options {
    void *user;
    struct mrc_cq *send_cq, *recv_cq;
    struct ibv_qp_cap cap;
    int all_signaled;
    struct ibv_pd *pd;
    uint64_t send_ops;
    uint32_t protocol;
};
struct mrc_context *mrc_create_context(struct ibv_context *, struct mrc_context_options *);
struct mrc_cq *mrc_create_cq(struct mrc_context *, int entries, void *user, struct mrc_channel *, int vector);
struct mrc_qp *mrc_create_qp(struct mrc_context *, struct mrc_qp_options *);
int mrc_modify_qp(struct mrc_qp *, struct ibv_qp_attr *, int mask, struct mrc_attributes *, int mrc_mask);
int mrc_get_qpn(struct mrc_qp *, uint32_t *);

struct end {
    uint32_t numbers[QPS], rkey;
    uint64_t address;
    union ibv_gid gid;
};

static struct transfer t;
static struct end ours, theirs;

static void make(int receiving)
{
    int count;
    struct ibv_device **devices = ibv_get_device_list(&count);
    struct mrc_context_options options = {0};
    struct ibv_context *device;
    struct mrc_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *region;

    NEED(devices && count == 1 && (device = ibv_open_device(devices[0])));
    NEED((pd = ibv_alloc_pd(device)) && (context = mrc_create_context(device, &options)));
    NEED(!posix_memalign((void **)&t.memory, 4096, LENGTH));
    NEED((region = ibv_reg_mr(pd, t.memory, LENGTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
    NEED((t.cq = mrc_create_cq(context, QPS * (DEPTH + RECEIVES), NULL, NULL, 0)));
    struct ibv_qp_cap cap = {.max_send_wr = DEPTH, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1};
    struct mrc_qp_options wanted = {.send_cq = t.cq, .recv_cq = t.cq, .cap = cap, .pd = pd};
    for (unsigned i = 0; i < QPS; i++) {
        struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
        NEED((t.qps[i] = mrc_create_qp(context, &wanted)));
        NEED(!mrc_get_qpn(t.qps[i], &ours.numbers[i]));
        NEED(!mrc_modify_qp(t.qps[i], &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, NULL, 0));
        t.qp_numbers[i] = ours.numbers[i];
    }
    t.qp_count = QPS;
    t.depth = receiving ? RECEIVES : DEPTH;
    t.message_bytes = MESSAGE;
    t.lkey = region->lkey;
    ours.rkey = region->rkey;
    ours.address = (uintptr_t)t.memory;
    NEED(!ibv_query_gid(device, 1, 3, &ours.gid));
}

static void join(void)
{
    for (unsigned i = 0; i < QPS; i++) {
        struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = theirs.numbers[i]};
        struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS};
        rtr.ah_attr.is_global = 1;
        rtr.ah_attr.port_num = 1;
        rtr.ah_attr.grh.dgid = theirs.gid;
        rtr.ah_attr.grh.sgid_index = 3;
        NEED(!mrc_modify_qp(t.qps[i], &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN, NULL, 0));
        NEED(!mrc_modify_qp(t.qps[i], &rts, IBV_QP_STATE | IBV_QP_SQ_PSN, NULL, 0));
    }
    t.rkey = theirs.rkey;
}

static int meet(const char *host, const char *port)
{
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = host ? 0 : AI_PASSIVE};
    struct addrinfo *found;
    int on = 1, fd;

    NEED(!getaddrinfo(host, port, &hints, &found));
    NEED((fd = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    while (host && connect(fd, found->ai_addr, found->ai_addrlen)) {
        NEED(errno == ECONNREFUSED); /* the receiver is not there yet */
        close(fd);
        usleep(20000);
        NEED((fd = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    }
    if (!host) {
        int listener = fd;
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
        NEED(!bind(listener, found->ai_addr, found->ai_addrlen) && !listen(listener, 1));
        NEED((fd = accept(listener, NULL, NULL)) >= 0);
        close(listener);
    }
    freeaddrinfo(found);
    return fd;
}

static void tell(int fd, const void *data, size_t bytes) { NEED(write(fd, data, bytes) == (ssize_t)bytes); }

static void hear(int fd, void *data, size_t bytes) { NEED(recv(fd, data, bytes, MSG_WAITALL) == (ssize_t)bytes); }

static uint8_t pattern(int half, size_t at) { return (uint8_t)(at * 31 + (at >> 8) * 7 + (size_t)half * 101); }

int main(int argc, char **argv)
{
    NEED(argc >= 3);
    int receiving = !strcmp(argv[1], "receive"), fd;
    char ready = 1;

    make(receiving);
    fd = meet(receiving ? NULL : argv[3], argv[2]);
    tell(fd, &ours, sizeof(ours));
    hear(fd, &theirs, sizeof(theirs));
    join();
    for (int half = 0; half < 2; half++) {
        t.length = LENGTH;
        t.remote_address = theirs.address;
        if (receiving) {
            if (!half)
                NEED(!receive_start(&t));
            tell(fd, &ready, 1);
            int code = receive_all(&t);
            for (size_t at = 0; at < LENGTH && !code; at++)
                if (t.memory[at] != pattern(half, at)) {
                    printf("half %d: byte %zu is wrong\n", half, at);
                    return 1;
                }
            printf("half %d: receive_all returned %d%s\n", half, code, code ? "" : ", every byte is right");
            tell(fd, &ready, 1);
            continue;
        }
        hear(fd, &ready, 1); /* it has posted its receives */
        if (half && argc > 4) {
            printf("half\n");
            fflush(stdout);
            NEED(getchar() != EOF);
        }
        for (size_t at = 0; at < LENGTH; at++)
            t.memory[at] = pattern(half, at);
        printf("half %d: send_all returned %d\n", half, send_all(&t));
        fflush(stdout);
        hear(fd, &ready, 1);
    }
    return 0;
}
