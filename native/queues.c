/* Posting and polling: the rings that the NIC service shares with this program. */
#define _GNU_SOURCE
#include "common.h"

#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define POLLS_BEFORE_NAP 200
#define NAP_NS 1000000

static uint32_t load(const word *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
static void store(word *at, uint32_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }

/* Find the free request at `index` after the last published request. Return 0, or an errno if the queue is full. */
int work_open(struct qp *qp, uint32_t index, struct wire_work **work)
{
    uint32_t number = qp->posted + index;

    if (number - __atomic_load_n(&qp->retired, __ATOMIC_ACQUIRE) >= qp->max_send)
        return ENOMEM;
    *work = &qp->sends[number & (qp->send_slots - 1)];
    memset(*work, 0, offsetof(struct wire_work, data));
    return 0;
}

void work_publish(struct qp *qp, uint32_t count)
{
    if (!count)
        return;
    qp->posted += count;
    store(&qp->words[WIRE_QP_SQ_PROD], qp->posted);
    session_ring(&qp->context->session);
}

static int may_post(const struct qp *qp)
{
    uint32_t state = load(&qp->words[WIRE_QP_STATE]);

    return state == IBV_QPS_RTS || state == IBV_QPS_ERR ? 0 : EINVAL;
}

static int copy_inline(const struct qp *qp, const struct ibv_send_wr *wr, struct wire_work *work)
{
    for (int i = 0; i < wr->num_sge; i++) {
        const struct ibv_sge *sge = &wr->sg_list[i];
        if (sge->length > qp->max_inline - work->length)
            return EINVAL;
        memcpy(work->data + work->length, (const void *)(uintptr_t)sge->addr, sge->length);
        work->length += sge->length;
    }
    work->flags |= WIRE_WORK_INLINE;
    return 0;
}

static int copy_list(const struct ibv_send_wr *wr, struct wire_work *work)
{
    uint64_t bytes = 0;

    for (int i = 0; i < wr->num_sge; i++) {
        struct wire_sge sge = {wr->sg_list[i].addr, wr->sg_list[i].length, wr->sg_list[i].lkey};
        memcpy(work->data + (size_t)i * sizeof(sge), &sge, sizeof(sge));
        bytes += sge.length;
    }
    work->num_sge = (uint16_t)wr->num_sge;
    return bytes > WIRE_MAX_MESSAGE ? EINVAL : 0;
}

static int refuse_opcode(enum ibv_wr_opcode opcode)
{
    static const char *const names[] = {
        [IBV_WR_SEND] = "SEND",
        [IBV_WR_SEND_WITH_IMM] = "SEND with immediate",
        [IBV_WR_RDMA_READ] = "RDMA READ",
        [IBV_WR_ATOMIC_CMP_AND_SWP] = "atomic compare and swap",
        [IBV_WR_ATOMIC_FETCH_AND_ADD] = "atomic fetch and add",
    };
    const char *name = opcode < sizeof(names) / sizeof(*names) ? names[opcode] : NULL;

    return refuse(name ? name : "a send request that is no WRITE", NO_OTHERS);
}

static int post_one(struct qp *qp, const struct ibv_send_wr *wr, uint32_t index)
{
    struct wire_work *work;

    if (wr->opcode != IBV_WR_RDMA_WRITE && wr->opcode != IBV_WR_RDMA_WRITE_WITH_IMM)
        return refuse_opcode(wr->opcode);
    if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->max_sge)
        return EINVAL;
    int error = work_open(qp, index, &work);
    if (error)
        return error;
    work->wr_id = wr->wr_id;
    work->opcode = wr->opcode == IBV_WR_RDMA_WRITE ? WIRE_WORK_WRITE : WIRE_WORK_WRITE_IMM;
    work->remote_addr = wr->wr.rdma.remote_addr;
    work->rkey = wr->wr.rdma.rkey;
    work->imm = __builtin_bswap32(wr->imm_data);
    if (wr->send_flags & IBV_SEND_SIGNALED || qp->sig_all)
        work->flags |= WIRE_WORK_SIGNALED;
    if (wr->send_flags & IBV_SEND_SOLICITED)
        work->flags |= WIRE_WORK_SOLICITED;
    return wr->send_flags & IBV_SEND_INLINE ? copy_inline(qp, wr, work) : copy_list(wr, work);
}

int post_send(struct ibv_qp *verbs, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct qp *qp = qp_of(verbs);
    uint32_t count = 0;

    pthread_mutex_lock(&qp->send_lock);
    int error = may_post(qp);
    while (wr && !error) {
        error = post_one(qp, wr, count);
        if (!error) {
            count++;
            wr = wr->next;
        }
    }
    work_publish(qp, count);
    pthread_mutex_unlock(&qp->send_lock);
    if (error) {
        *bad = wr;
        errno = error;
    }
    return error;
}

int post_recv(struct ibv_qp *verbs, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct qp *qp = qp_of(verbs);
    uint32_t before;
    int error = 0;

    pthread_mutex_lock(&qp->receive_lock);
    before = qp->received;
    if (load(&qp->words[WIRE_QP_STATE]) == IBV_QPS_RESET)
        error = EINVAL;
    while (wr && !error) {
        if (qp->received - __atomic_load_n(&qp->received_retired, __ATOMIC_ACQUIRE) >= qp->max_receive) {
            error = ENOMEM;
        } else {
            qp->receives[qp->received & (qp->receive_slots - 1)].wr_id = wr->wr_id;
            qp->received++;
            wr = wr->next;
        }
    }
    if (qp->received != before) {
        store(&qp->words[WIRE_QP_RQ_PROD], qp->received);
        session_ring(&qp->context->session);
    }
    pthread_mutex_unlock(&qp->receive_lock);
    if (error) {
        *bad = wr;
        errno = error;
    }
    return error;
}

int req_notify_cq(struct ibv_cq *verbs, int solicited)
{
    store(&cq_of(verbs)->words[WIRE_CQ_ARMED], solicited ? 2 : 1);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return 0;
}

/* Convert a completion. Return false if the queue pair of the completion no longer exists. */
static bool convert(struct context *context, const struct wire_completion *from, struct ibv_wc *wc)
{
    bool send = from->opcode == IBV_WC_RDMA_WRITE, found;

    pthread_mutex_lock(&context->lock);
    struct qp *qp = from->cookie < WIRE_MAX_QP ? context->qps[from->cookie] : NULL;
    found = qp && qp->ex.qp_base.qp_num == from->qp_num;
    if (found)
        __atomic_store_n(send ? &qp->retired : &qp->received_retired, from->retired, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&context->lock);
    memset(wc, 0, sizeof(*wc));
    wc->wr_id = from->wr_id;
    wc->status = from->status;
    wc->opcode = from->opcode;
    wc->byte_len = from->byte_len;
    wc->imm_data = __builtin_bswap32(from->imm);
    wc->qp_num = from->qp_num;
    wc->wc_flags = from->flags;
    return found;
}

static int take(struct cq *cq, int count, struct ibv_wc *wc)
{
    uint32_t prod = load(&cq->words[WIRE_CQ_PROD]);
    int done = 0;

    while (done < count && cq->taken != prod) {
        if (convert(cq->context, &cq->ring[cq->taken & (cq->slots - 1)], &wc[done]))
            done++;
        store(&cq->words[WIRE_CQ_CONS], ++cq->taken);
    }
    return done;
}

/* Complete all posted requests with the status "flushed", because the service has ended. */
static int flush(struct cq *cq, int count, struct ibv_wc *wc)
{
    struct context *context = cq->context;
    int done = 0;

    pthread_mutex_lock(&context->lock);
    for (uint32_t i = 0; i < WIRE_MAX_QP; i++) {
        struct qp *qp = context->qps[i];
        if (!qp || !qp->words) /* no such queue pair, or it is being created */
            continue;
        qp->words[WIRE_QP_STATE] = IBV_QPS_ERR;
        while (done < count && cq_of(qp->ex.qp_base.send_cq) == cq && qp->retired != qp->posted) {
            const struct wire_work *work = &qp->sends[qp->retired++ & (qp->send_slots - 1)];
            wc[done++] = (struct ibv_wc){.wr_id = work->wr_id,
                                         .status = IBV_WC_WR_FLUSH_ERR,
                                         .opcode = IBV_WC_RDMA_WRITE,
                                         .qp_num = qp->ex.qp_base.qp_num};
        }
        while (done < count && cq_of(qp->ex.qp_base.recv_cq) == cq && qp->received_retired != qp->received) {
            const struct wire_receive *receive = &qp->receives[qp->received_retired++ & (qp->receive_slots - 1)];
            wc[done++] = (struct ibv_wc){.wr_id = receive->wr_id,
                                         .status = IBV_WC_WR_FLUSH_ERR,
                                         .opcode = IBV_WC_RECV,
                                         .qp_num = qp->ex.qp_base.qp_num};
        }
    }
    pthread_mutex_unlock(&context->lock);
    return done;
}

/* Sleep until a completion arrives, at most for a millisecond, so that other processes can use the CPU. */
static void nap(struct cq *cq)
{
    struct session *session = &cq->context->session;
    struct pollfd fds[] = {{.fd = session->wake, .events = POLLIN}, {.fd = session->socket}};
    const struct timespec limit = {.tv_nsec = NAP_NS};
    uint64_t count;

    __atomic_store_n(&session->page[WIRE_SESSION_NAPS], 1, __ATOMIC_SEQ_CST);
    if (load(&cq->words[WIRE_CQ_PROD]) == cq->taken && ppoll(fds, 2, &limit, NULL) > 0) {
        if (fds[0].revents & POLLIN) {
            ssize_t got = read(session->wake, &count, sizeof(count));
            (void)got;
        }
        if (fds[1].revents & (POLLHUP | POLLERR))
            session->dead = true;
    }
}

int poll_cq(struct ibv_cq *verbs, int count, struct ibv_wc *wc)
{
    struct cq *cq = cq_of(verbs);
    struct context *context = cq->context;
    int done;

    pthread_mutex_lock(&cq->lock);
    done = take(cq, count, wc);
    if (!done && context->session.dead)
        done = flush(cq, count, wc);
    if (done)
        context->empty_polls = 0;
    bool tired = !done && ++context->empty_polls > POLLS_BEFORE_NAP;
    pthread_mutex_unlock(&cq->lock);
    if (tired && !context->session.dead)
        nap(cq);
    return done;
}
