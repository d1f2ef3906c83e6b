/* Create and destroy protection domains, regions, channels, completion queues and queue pairs. */
#define _GNU_SOURCE
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#define CALL(context, op, reply, ...)                                                                          \
    session_call(&(context)->session, WIRE_OP_##op, (const uint64_t[]){__VA_ARGS__},                           \
                 sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t), NULL, reply, NULL, 0)

static void *failed(void *object, int error)
{
    free(object);
    errno = error;
    return NULL;
}

EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *verbs)
{
    struct ibv_pd *pd = calloc(1, sizeof(*pd));

    if (pd) {
        pd->context = verbs;
        pd->handle = __atomic_add_fetch(&context_of(verbs)->next_pd, 1, __ATOMIC_SEQ_CST);
    }
    return pd;
}

EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
    free(pd);
    return 0;
}

EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned access)
{
    struct ibv_mr *mr = calloc(1, sizeof(*mr));
    struct wire_reply reply;

    if (!mr)
        return NULL;
    access &= ~(unsigned)(IBV_ACCESS_OPTIONAL_RANGE & ~(unsigned)IBV_ACCESS_RELAXED_ORDERING);
    int error = CALL(context_of(pd->context), REG_MR, &reply, (uintptr_t)addr, length, iova, access, pd->handle);
    if (error)
        return failed(mr, error);
    mr->context = pd->context;
    mr->pd = pd;
    mr->addr = addr;
    mr->length = length;
    mr->handle = mr->lkey = mr->rkey = (uint32_t)reply.v0;
    return mr;
}

EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, (unsigned)access);
}

EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
    return ibv_reg_mr_iova2(pd, addr, length, iova, (unsigned)access);
}

EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
    struct context *context = context_of(mr->context);
    int error = CALL(context, DEREG_MR, NULL, mr->rkey);

    if (error && !session_died(&context->session))
        return error;
    free(mr);
    return 0;
}

EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *verbs)
{
    struct channel *channel = calloc(1, sizeof(*channel));
    struct wire_reply reply;
    int fd;

    if (!channel)
        return NULL;
    int error = session_call(&context_of(verbs)->session, WIRE_OP_CREATE_CHANNEL, NULL, 0, NULL, &reply, &fd, 1);
    if (error)
        return failed(channel, error);
    channel->ibv.context = verbs;
    channel->ibv.fd = fd;
    channel->id = (uint32_t)reply.v0;
    return &channel->ibv;
}

EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *verbs)
{
    struct channel *channel = (struct channel *)verbs;
    struct context *context = context_of(verbs->context);

    if (verbs->refcnt)
        return EBUSY;
    int error = CALL(context, DESTROY_CHANNEL, NULL, channel->id);
    if (error && !session_died(&context->session))
        return error;
    close(verbs->fd);
    free(channel);
    return 0;
}

EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *verbs, int cqe, void *user, struct ibv_comp_channel *channel,
                                    int vector)
{
    struct context *context = context_of(verbs);
    struct cq *cq = calloc(1, sizeof(*cq));
    struct wire_reply reply;
    uint32_t place = 0;
    int fd;

    if (!cq)
        return NULL;
    if (cqe < 1 || vector < 0 || vector >= verbs->num_comp_vectors)
        return failed(cq, EINVAL);
    const uint64_t args[] = {(uint64_t)cqe, channel ? ((struct channel *)channel)->id : 0};
    int error = session_call(&context->session, WIRE_OP_CREATE_CQ, args, 2, NULL, &reply, &fd, 1);
    if (error)
        return failed(cq, error);
    cq->context = context;
    cq->id = (uint32_t)reply.v0;
    cq->slots = (uint32_t)reply.v1;
    cq->bytes = reply.v2;
    cq->words = map_shared(fd, cq->bytes);
    pthread_mutex_lock(&context->lock);
    while (place < WIRE_MAX_CQ && context->cqs[place])
        place++;
    if (cq->words && place < WIRE_MAX_CQ)
        context->cqs[place] = cq;
    pthread_mutex_unlock(&context->lock);
    if (!cq->words || place == WIRE_MAX_CQ) {
        CALL(context, DESTROY_CQ, NULL, cq->id);
        return failed(cq, ENOMEM);
    }
    cq->ring = (struct wire_completion *)((uintptr_t)cq->words + WIRE_CQ_RING_OFFSET);
    pthread_mutex_init(&cq->lock, NULL);
    pthread_mutex_init(&cq->ibv.mutex, NULL);
    pthread_cond_init(&cq->ibv.cond, NULL);
    cq->ibv.context = verbs;
    cq->ibv.channel = channel;
    cq->ibv.cq_context = user;
    cq->ibv.cqe = (int)cq->slots;
    if (channel)
        __atomic_add_fetch(&channel->refcnt, 1, __ATOMIC_SEQ_CST);
    return &cq->ibv;
}

/* Wait until all events of an object are acknowledged. The caller holds the context's lock. */
static void await_acknowledged(struct context *context, const uint32_t *events, const uint32_t *acknowledged)
{
    while (*acknowledged != *events)
        pthread_cond_wait(&context->acknowledged, &context->lock);
}

EXPORT int ibv_destroy_cq(struct ibv_cq *verbs)
{
    struct cq *cq = cq_of(verbs);
    struct context *context = cq->context;
    int error = CALL(context, DESTROY_CQ, NULL, cq->id);

    if (error && !session_died(&context->session))
        return error;
    pthread_mutex_lock(&context->lock);
    for (uint32_t i = 0; i < WIRE_MAX_CQ; i++)
        if (context->cqs[i] == cq)
            context->cqs[i] = NULL;
    await_acknowledged(context, &cq->events, &cq->acknowledged);
    pthread_mutex_unlock(&context->lock);
    if (verbs->channel)
        __atomic_sub_fetch(&verbs->channel->refcnt, 1, __ATOMIC_SEQ_CST);
    munmap((void *)(uintptr_t)cq->words, cq->bytes);
    free(cq);
    return 0;
}

EXPORT int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **found, void **user)
{
    struct context *context = context_of(channel->context);
    struct wire_event event;

    for (;;) {
        ssize_t got = read(channel->fd, &event, sizeof(event));
        if (got != (ssize_t)sizeof(event)) {
            if (!got)
                errno = EIO; /* the service has ended */
            return -1;
        }
        struct cq *cq = NULL;
        pthread_mutex_lock(&context->lock);
        for (uint32_t i = 0; i < WIRE_MAX_CQ; i++)
            if (context->cqs[i] && context->cqs[i]->id == event.id) {
                cq = context->cqs[i];
                cq->events++;
            }
        pthread_mutex_unlock(&context->lock);
        if (!cq)
            continue; /* the queue was destroyed after the event */
        *found = &cq->ibv;
        *user = cq->ibv.cq_context;
        return 0;
    }
}

EXPORT void ibv_ack_cq_events(struct ibv_cq *verbs, unsigned count)
{
    struct context *context = cq_of(verbs)->context;

    pthread_mutex_lock(&context->lock);
    cq_of(verbs)->acknowledged += count;
    pthread_cond_broadcast(&context->acknowledged);
    pthread_mutex_unlock(&context->lock);
}

static int refuse_type(enum ibv_qp_type type)
{
    const char *name = "a queue pair that is not RC";

    if (type == IBV_QPT_UD)
        name = "a queue pair of type UD";
    else if (type == IBV_QPT_UC)
        name = "a queue pair of type UC";
    else if (type == IBV_QPT_XRC_SEND || type == IBV_QPT_XRC_RECV)
        name = "a queue pair of type XRC";
    else if (type == IBV_QPT_RAW_PACKET)
        name = "a queue pair of type RAW_PACKET";
    return refuse(name, "MRC has reliable connections alone");
}

static int check_limits(const struct ibv_qp_init_attr *init)
{
    const struct ibv_qp_cap *cap = &init->cap;

    if (init->srq)
        return refuse("a queue pair with an SRQ", "MRC has no shared receive queues");
    if (init->qp_type != IBV_QPT_RC)
        return refuse_type(init->qp_type);
    if (!init->send_cq || !init->recv_cq || cap->max_send_wr > WIRE_MAX_SEND_WR ||
        cap->max_recv_wr > WIRE_MAX_RECV_WR || cap->max_send_sge > WIRE_MAX_SGE || cap->max_recv_sge > WIRE_MAX_SGE ||
        cap->max_inline_data > WIRE_MAX_INLINE)
        return EINVAL;
    return 0;
}

static bool place_qp(struct context *context, struct qp *qp)
{
    bool placed = false;

    pthread_mutex_lock(&context->lock);
    for (uint32_t i = 0; i < WIRE_MAX_QP && !placed; i++)
        if (!context->qps[i]) {
            context->qps[i] = qp;
            qp->cookie = i;
            placed = true;
        }
    pthread_mutex_unlock(&context->lock);
    return placed;
}

static void remove_qp(struct context *context, const struct qp *qp)
{
    pthread_mutex_lock(&context->lock);
    context->qps[qp->cookie] = NULL;
    pthread_mutex_unlock(&context->lock);
}

static int create_remote(struct context *context, struct qp *qp, const struct ibv_qp_init_attr *init, uint32_t pd)
{
    struct wire_reply reply;
    int fd;
    const uint64_t args[] = {cq_of(init->send_cq)->id,
                             cq_of(init->recv_cq)->id,
                             init->cap.max_send_wr,
                             init->cap.max_recv_wr,
                             (uint64_t)init->sq_sig_all,
                             pd,
                             qp->cookie};
    int error = session_call(&context->session, WIRE_OP_CREATE_QP, args, 7, NULL, &reply, &fd, 1);

    if (error)
        return error;
    qp->ex.qp_base.qp_num = (uint32_t)reply.v0;
    qp->send_slots = (uint32_t)reply.v1;
    qp->receive_slots = (uint32_t)reply.v2;
    qp->bytes = reply.v3;
    qp->words = map_shared(fd, qp->bytes);
    if (!qp->words) {
        CALL(context, DESTROY_QP, NULL, qp->ex.qp_base.qp_num);
        return ENOMEM;
    }
    uint8_t *rings = (uint8_t *)(uintptr_t)qp->words + WIRE_QP_RING_OFFSET;
    qp->sends = (struct wire_work *)rings;
    qp->receives = (struct wire_receive *)(rings + qp->send_slots * sizeof(struct wire_work));
    return 0;
}

struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init, bool extended)
{
    struct context *context = context_of(pd->context);
    struct qp *qp = calloc(1, sizeof(*qp));
    int error = qp ? check_limits(init) : ENOMEM;

    if (error)
        return failed(qp, error);
    if (!place_qp(context, qp))
        return failed(qp, ENOMEM);
    error = create_remote(context, qp, init, pd->handle);
    if (error) {
        remove_qp(context, qp);
        return failed(qp, error);
    }
    struct ibv_qp *verbs = &qp->ex.qp_base;
    qp->context = context;
    qp->max_send = init->cap.max_send_wr;
    qp->max_receive = init->cap.max_recv_wr;
    qp->max_sge = init->cap.max_send_sge;
    qp->max_inline = init->cap.max_inline_data;
    qp->sig_all = init->sq_sig_all;
    qp->init = *init;
    qp->attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE; /* the API's own sample sets no access flags */
    pthread_mutex_init(&qp->send_lock, NULL);
    pthread_mutex_init(&qp->receive_lock, NULL);
    verbs->context = pd->context;
    verbs->qp_context = init->qp_context;
    verbs->pd = pd;
    verbs->send_cq = init->send_cq;
    verbs->recv_cq = init->recv_cq;
    verbs->qp_type = IBV_QPT_RC;
    verbs->state = IBV_QPS_RESET;
    qp->extended = extended;
    if (extended)
        extended_set_up(qp);
    return verbs;
}

EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
    return create_qp(pd, init, false);
}

struct ibv_qp *create_qp_ex(struct ibv_context *verbs, struct ibv_qp_init_attr_ex *init)
{
    const uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    const uint64_t possible = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    bool extended = init->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;

    (void)verbs;
    if (init->comp_mask & ~known || !(init->comp_mask & IBV_QP_INIT_ATTR_PD)) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    if (extended && init->send_ops_flags & ~possible) {
        errno = refuse("a queue pair with other operations", NO_OTHERS);
        return NULL;
    }
    return create_qp(init->pd, (struct ibv_qp_init_attr *)init, extended); /* both begin with the same fields */
}

EXPORT struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *verbs)
{
    return qp_of(verbs)->extended ? &qp_of(verbs)->ex : NULL;
}

EXPORT int ibv_destroy_qp(struct ibv_qp *verbs)
{
    struct qp *qp = qp_of(verbs);
    struct context *context = qp->context;
    int error = CALL(context, DESTROY_QP, NULL, verbs->qp_num);

    if (error && !session_died(&context->session))
        return error;
    remove_qp(context, qp);
    pthread_mutex_lock(&context->lock);
    await_acknowledged(context, &qp->events, &qp->acknowledged);
    pthread_mutex_unlock(&context->lock);
    munmap((void *)(uintptr_t)qp->words, qp->bytes);
    pthread_mutex_destroy(&qp->send_lock);
    pthread_mutex_destroy(&qp->receive_lock);
    free(qp);
    return 0;
}

static void keep_attributes(struct ibv_qp_attr *kept, const struct ibv_qp_attr *attr, int mask)
{
    if (mask & IBV_QP_ACCESS_FLAGS)
        kept->qp_access_flags = attr->qp_access_flags;
    if (mask & IBV_QP_PORT)
        kept->port_num = attr->port_num;
    if (mask & IBV_QP_AV)
        kept->ah_attr = attr->ah_attr;
    if (mask & IBV_QP_PATH_MTU)
        kept->path_mtu = attr->path_mtu;
    if (mask & IBV_QP_DEST_QPN)
        kept->dest_qp_num = attr->dest_qp_num;
    if (mask & IBV_QP_RQ_PSN)
        kept->rq_psn = attr->rq_psn;
    if (mask & IBV_QP_SQ_PSN)
        kept->sq_psn = attr->sq_psn;
    if (mask & IBV_QP_TIMEOUT)
        kept->timeout = attr->timeout;
    if (mask & IBV_QP_RETRY_CNT)
        kept->retry_cnt = attr->retry_cnt;
}

EXPORT int ibv_modify_qp(struct ibv_qp *verbs, struct ibv_qp_attr *attr, int mask)
{
    const int to_rtr = IBV_QP_AV | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    struct qp *qp = qp_of(verbs);
    struct ibv_qp_attr next = qp->attr;

    if (mask & IBV_QP_PORT && attr->port_num != 1)
        return EINVAL;
    keep_attributes(&next, attr, mask);
    if (!(mask & IBV_QP_STATE)) {
        qp->attr = next;
        return 0;
    }
    if ((attr->qp_state == IBV_QPS_RTR && (mask & to_rtr) != to_rtr) ||
        (attr->qp_state == IBV_QPS_RTS && verbs->state == IBV_QPS_RTR && !(mask & IBV_QP_SQ_PSN)))
        return EINVAL;
    if (attr->qp_state == IBV_QPS_RTR && !attr->ah_attr.is_global)
        return refuse("an address without a GID", "set is_global and grh.dgid, as for RoCE");
    const uint64_t args[] = {verbs->qp_num, attr->qp_state, next.dest_qp_num,
                             next.rq_psn,   next.sq_psn,    next.path_mtu,
                             !(next.qp_access_flags & IBV_ACCESS_REMOTE_WRITE)};
    int error = session_call(&qp->context->session, WIRE_OP_MODIFY_QP, args, 7, next.ah_attr.grh.dgid.raw, NULL,
                             NULL, 0);
    if (!error) {
        verbs->state = attr->qp_state;
        qp->attr = next;
    }
    return error;
}

EXPORT int ibv_query_qp(struct ibv_qp *verbs, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
    struct qp *qp = qp_of(verbs);

    (void)mask;
    verbs->state = qp->words[WIRE_QP_STATE];
    if (attr) {
        *attr = qp->attr;
        attr->qp_state = attr->cur_qp_state = verbs->state;
        attr->cap = qp->init.cap;
    }
    if (init)
        *init = qp->init;
    return 0;
}

EXPORT int ibv_query_qp_data_in_order(struct ibv_qp *verbs, enum ibv_wr_opcode op, uint32_t flags)
{
    (void)verbs, (void)op, (void)flags;
    return 0; /* MRC places data in any order */
}
