/* Types and functions that all source files of libmrclab-verbs.so use. */
#pragma once
#include "layout.h"

#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define PROVIDER_ROOM 4096 /* other libraries may read fields of their own after an ibv_device */

typedef volatile uint32_t word;

/* A connection to the NIC service. */
struct session {
    int socket;
    pthread_mutex_t lock;
    word *page;
    int doorbell, wake, events;
    bool dead;
    uint64_t guid; /* as it lies in memory */
    uint32_t mtu, planes, max_mpr, max_wimm;
    uint8_t timeout, linear_retry, exponential_retry;
    union ibv_gid gids[WIRE_GIDS];
};

struct device {
    struct ibv_device ibv;
    uint8_t room[PROVIDER_ROOM];
    uint64_t guid;
};

struct qp;
struct cq;

struct context {
    struct verbs_context verbs; /* must be first */
    struct session session;
    pthread_mutex_t lock; /* protects qps, cqs and their numbers of events */
    pthread_cond_t acknowledged; /* an event was acknowledged */
    struct qp *qps[WIRE_MAX_QP];
    struct cq *cqs[WIRE_MAX_CQ];
    uint32_t empty_polls, next_pd;
    bool told_fatal;
};

struct channel {
    struct ibv_comp_channel ibv; /* must be first */
    uint32_t id;
};

struct cq {
    struct ibv_cq ibv; /* must be first */
    struct context *context;
    uint32_t id, slots, taken;
    size_t bytes;
    word *words;
    struct wire_completion *ring;
    uint32_t events, acknowledged;
    pthread_mutex_t lock;
};

struct qp {
    struct ibv_qp_ex ex; /* must be first: its own first field is the ibv_qp */
    struct context *context;
    uint32_t cookie, send_slots, receive_slots;
    size_t bytes;
    word *words;
    struct wire_work *sends;
    struct wire_receive *receives;
    uint32_t max_send, max_receive, max_sge, max_inline;
    uint32_t posted, received;           /* numbers of posted sends and receives */
    uint32_t retired, received_retired;  /* numbers of polled sends and receives */
    uint32_t events, acknowledged;
    bool extended, sig_all;
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    pthread_mutex_t send_lock, receive_lock;
    uint32_t batch;                /* number of requests since ibv_wr_start */
    int batch_error;
    struct wire_work *current;
    void *extra; /* data of lib_mrc.so */
};

static inline struct context *context_of(struct ibv_context *context)
{
    return (struct context *)((uint8_t *)context - offsetof(struct verbs_context, context));
}

static inline struct cq *cq_of(struct ibv_cq *cq) { return (struct cq *)cq; }
static inline struct qp *qp_of(struct ibv_qp *qp) { return (struct qp *)qp; }

/* session.c. Functions that send a request return 0 or a positive errno. */
int session_open(struct session *session);
void session_close(struct session *session);
int session_call(struct session *session, uint32_t op, const uint64_t *args, int count, const uint8_t *gid,
                 struct wire_reply *reply, int *fds, int most_fds);
bool session_died(struct session *session);
void session_ring(struct session *session);
/* Send a request about a queue pair. lib_mrc.so calls this. */
int mrclab_call(struct ibv_qp *qp, uint32_t op, const uint64_t *args, int count);
/* Send a request of a controller. Store the two values of the answer in `values`. */
int mrclab_control(struct ibv_context *context, const uint64_t *args, int count, uint64_t *values);
void *map_shared(int fd, size_t bytes);

/* queues.c */
int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc);
int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int req_notify_cq(struct ibv_cq *cq, int solicited);
int work_open(struct qp *qp, uint32_t index, struct wire_work **work);
void work_publish(struct qp *qp, uint32_t count);

/* extended.c */
void extended_set_up(struct qp *qp);

/* objects.c */
struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init, bool extended);
struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *init);

/* device.c */
int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr, size_t bytes);

/* refused.c. Print the refused function and the reason, once for each function. Return EOPNOTSUPP. */
#define NO_OTHERS "MRC has WRITE and WRITE with immediate alone"
int refuse(const char *name, const char *why);
/* Make all other functions that programs call through the context refuse. */
void refuse_rest(struct verbs_context *verbs);
