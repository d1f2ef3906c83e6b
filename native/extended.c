/* The extended API for posting, ibv_wr_*: requests are built in the ring and published together. */
#define _GNU_SOURCE
#include "common.h"

#include <string.h>

static struct qp *extended_of(struct ibv_qp_ex *ex) { return (struct qp *)ex; }

static void start(struct ibv_qp_ex *ex)
{
    struct qp *qp = extended_of(ex);

    pthread_mutex_lock(&qp->send_lock);
    qp->batch = 0;
    qp->batch_error = 0;
    qp->current = NULL;
}

static int complete(struct ibv_qp_ex *ex)
{
    struct qp *qp = extended_of(ex);
    uint32_t state = qp->words[WIRE_QP_STATE];
    int error = qp->batch_error;

    if (!error && state != IBV_QPS_RTS && state != IBV_QPS_ERR)
        error = EINVAL;
    if (!error)
        work_publish(qp, qp->batch);
    pthread_mutex_unlock(&qp->send_lock);
    return error;
}

static void give_up(struct ibv_qp_ex *ex) { pthread_mutex_unlock(&extended_of(ex)->send_lock); }

static void add(struct ibv_qp_ex *ex, uint8_t opcode, uint32_t rkey, uint64_t remote_addr, __be32 imm)
{
    struct qp *qp = extended_of(ex);
    struct wire_work *work;
    int error = work_open(qp, qp->batch, &work);

    qp->current = NULL;
    if (error) {
        qp->batch_error = error;
        return;
    }
    qp->batch++;
    qp->current = work;
    work->wr_id = ex->wr_id;
    work->opcode = opcode;
    work->rkey = rkey;
    work->remote_addr = remote_addr;
    work->imm = __builtin_bswap32(imm);
    if (ex->wr_flags & IBV_SEND_SIGNALED || qp->sig_all)
        work->flags |= WIRE_WORK_SIGNALED;
    if (ex->wr_flags & IBV_SEND_SOLICITED)
        work->flags |= WIRE_WORK_SOLICITED;
}

static void wr_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote_addr)
{
    add(ex, WIRE_WORK_WRITE, rkey, remote_addr, 0);
}

static void wr_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote_addr, __be32 imm)
{
    add(ex, WIRE_WORK_WRITE_IMM, rkey, remote_addr, imm);
}

static void set_sge_list(struct ibv_qp_ex *ex, size_t count, const struct ibv_sge *list)
{
    struct qp *qp = extended_of(ex);
    uint64_t bytes = 0;

    if (!qp->current)
        return;
    if (count > qp->max_sge) {
        qp->batch_error = EINVAL;
        return;
    }
    for (size_t i = 0; i < count; i++) {
        struct wire_sge sge = {list[i].addr, list[i].length, list[i].lkey};
        memcpy(qp->current->data + i * sizeof(sge), &sge, sizeof(sge));
        bytes += sge.length;
    }
    qp->current->num_sge = (uint16_t)count;
    if (bytes > WIRE_MAX_MESSAGE)
        qp->batch_error = EINVAL;
}

static void set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length)
{
    const struct ibv_sge sge = {addr, length, lkey};

    set_sge_list(ex, 1, &sge);
}

static void set_inline_list(struct ibv_qp_ex *ex, size_t count, const struct ibv_data_buf *list)
{
    struct qp *qp = extended_of(ex);
    struct wire_work *work = qp->current;

    if (!work)
        return;
    work->flags |= WIRE_WORK_INLINE;
    for (size_t i = 0; i < count; i++) {
        if (list[i].length > qp->max_inline - work->length) {
            qp->batch_error = EINVAL;
            return;
        }
        memcpy(work->data + work->length, list[i].addr, list[i].length);
        work->length += (uint32_t)list[i].length;
    }
}

static void set_inline(struct ibv_qp_ex *ex, void *addr, size_t length)
{
    const struct ibv_data_buf buffer = {addr, length};

    set_inline_list(ex, 1, &buffer);
}

void extended_set_up(struct qp *qp)
{
    struct ibv_qp_ex *ex = &qp->ex;

    ex->wr_start = start;
    ex->wr_complete = complete;
    ex->wr_abort = give_up;
    ex->wr_rdma_write = wr_write;
    ex->wr_rdma_write_imm = wr_write_imm;
    ex->wr_set_sge = set_sge;
    ex->wr_set_sge_list = set_sge_list;
    ex->wr_set_inline_data = set_inline;
    ex->wr_set_inline_data_list = set_inline_list;
}
