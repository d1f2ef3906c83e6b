/* What the test programs share: checks, and how two of them meet over TCP and connect their queue pairs. */
#pragma once
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                                       \
    do {                                                                                                       \
        if (!(condition)) {                                                                                    \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, strerror(errno));                 \
            exit(1);                                                                                           \
        }                                                                                                      \
    } while (0)

struct end {
    uint32_t qpn, psn, rkey, pad;
    uint64_t address;
    union ibv_gid gid;
};

struct nic {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    uint8_t *memory;
};

static inline void whole(int fd, void *data, size_t bytes, int sending)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = sending ? write(fd, (char *)data + done, bytes - done) : read(fd, (char *)data + done, bytes - done);
        CHECK(n > 0);
        done += (size_t)n;
    }
}

static inline int meet(const char *host, const char *port)
{
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = host ? 0 : AI_PASSIVE};
    struct addrinfo *found;
    int on = 1;

    CHECK(!getaddrinfo(host, port, &hints, &found));
    int fd = socket(found->ai_family, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (host) {
        while (connect(fd, found->ai_addr, found->ai_addrlen)) {
            CHECK(errno == ECONNREFUSED); /* the server is not there yet */
            close(fd);
            usleep(20000);
            fd = socket(found->ai_family, SOCK_STREAM, 0);
        }
    } else {
        int listener = fd;
        CHECK(!bind(listener, found->ai_addr, found->ai_addrlen) && !listen(listener, 1));
        fd = accept(listener, NULL, NULL);
        CHECK(fd >= 0);
        close(listener);
    }
    freeaddrinfo(found);
    return fd;
}

/* Send our end to the peer and take its own; both have passed this point afterwards. */
static inline void swap_ends(int fd, const struct end *ours, struct end *theirs)
{
    whole(fd, (void *)(uintptr_t)ours, sizeof(*ours), 1);
    whole(fd, theirs, sizeof(*theirs), 0);
}

static inline struct nic open_nic(size_t bytes)
{
    struct nic nic = {0};
    struct ibv_device **list = ibv_get_device_list(NULL);

    CHECK(list && list[0] && (nic.context = ibv_open_device(list[0])));
    ibv_free_device_list(list);
    CHECK((nic.pd = ibv_alloc_pd(nic.context)) && (nic.cq = ibv_create_cq(nic.context, 64, NULL, NULL, 0)));
    CHECK(!posix_memalign((void **)&nic.memory, 4096, bytes));
    memset(nic.memory, 0, bytes);
    CHECK((nic.mr = ibv_reg_mr(nic.pd, nic.memory, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
    return nic;
}

static inline struct ibv_qp *make_qp(const struct nic *nic)
{
    struct ibv_qp_cap cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1};
    struct ibv_qp_init_attr init = {.send_cq = nic->cq, .recv_cq = nic->cq, .cap = cap, .qp_type = IBV_QPT_RC};
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    struct ibv_qp *qp = ibv_create_qp(nic->pd, &init);

    CHECK(qp);
    CHECK(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    return qp;
}

static inline struct end end_of(const struct nic *nic, const struct ibv_qp *qp)
{
    struct end end = {.qpn = qp->qp_num, .psn = 7, .rkey = nic->mr->rkey, .address = (uintptr_t)nic->memory};

    CHECK(!ibv_query_gid(nic->context, 1, 3, &end.gid));
    return end;
}

static inline void connect_qp(struct ibv_qp *qp, const struct end *theirs)
{
    struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = theirs->qpn};
    struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .sq_psn = 7};

    rtr.rq_psn = theirs->psn;
    rtr.ah_attr.is_global = 1;
    rtr.ah_attr.port_num = 1;
    rtr.ah_attr.grh.dgid = theirs->gid;
    rtr.ah_attr.grh.sgid_index = 3;
    CHECK(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN));
    CHECK(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN));
}
