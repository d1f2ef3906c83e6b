/* A NIC that asks the judge of lab 9 what happens (mrclab.labs.programming): linked with a student's transfer.c.
 *
 * A line on standard output is a question, with the bytes of a write after it; the answer is a line on standard input. What
 * the student's code prints goes to standard error. */
#include "transfer.h"
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct mrc_qp {
    unsigned number;
};
struct mrc_cq {
    int unused;
};

static FILE *asks, *answers;
static struct mrc_qp qps[MOST_QPS];
static struct mrc_cq cq;
static struct transfer shown;

static long long number(void)
{
    long long value;

    fflush(asks);
    if (fscanf(answers, "%lld", &value) != 1)
        _exit(0); /* the judge has seen enough */
    return value;
}

static int post(struct ibv_send_wr *wr, unsigned qp)
{
    const struct ibv_sge *piece = wr->sg_list;
    uint64_t start = (uintptr_t)shown.memory;
    int one = wr->num_sge == 1, ours = one && piece->addr >= start && piece->addr - start + piece->length <= shown.length;

    fprintf(asks, "S %u %" PRIu64 " %d %u %u %" PRIu64 " %u %d %u %u %d\n", qp, wr->wr_id, wr->opcode, wr->send_flags,
            ntohl(wr->imm_data), wr->wr.rdma.remote_addr, wr->wr.rdma.rkey, wr->num_sge, one ? piece->lkey : 0,
            one ? piece->length : 0, ours);
    if (ours)
        fwrite((void *)(uintptr_t)piece->addr, 1, piece->length, asks);
    return (int)number();
}

int mrc_post_send(struct mrc_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    for (; wr; wr = wr->next) {
        int code = post(wr, qp->number);
        if (code) {
            *bad = wr;
            return code;
        }
    }
    return 0;
}

int mrc_post_recv(struct mrc_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    for (; wr; wr = wr->next) {
        fprintf(asks, "R %u %" PRIu64 "\n", qp->number, wr->wr_id);
        int code = (int)number();
        if (code) {
            *bad = wr;
            return code;
        }
    }
    return 0;
}

int mrc_poll_cq(struct mrc_cq *queue, int count, struct ibv_wc *wc)
{
    (void)queue;
    fprintf(asks, "P %d\n", count);
    int found = (int)number();
    for (int i = 0; i < found; i++) {
        memset(&wc[i], 0xA5, sizeof(wc[i])); /* what is not set means nothing */
        wc[i].wr_id = (uint64_t)number();
        wc[i].status = (enum ibv_wc_status)number();
        wc[i].qp_num = (uint32_t)number();
        long long opcode = number(), imm = number(), bytes = number();
        if (wc[i].status != IBV_WC_SUCCESS)
            continue;
        wc[i].opcode = (enum ibv_wc_opcode)opcode;
        wc[i].byte_len = (uint32_t)bytes;
        wc[i].wc_flags = imm < 0 ? 0 : IBV_WC_WITH_IMM;
        if (imm >= 0)
            wc[i].imm_data = htonl((uint32_t)imm);
    }
    return found;
}

int main(void)
{
    asks = fdopen(dup(1), "w");
    answers = fdopen(dup(0), "r");
    if (!asks || !answers || dup2(2, 1) < 0 || !freopen("/dev/null", "r", stdin))
        return 1;
    setvbuf(asks, NULL, _IOFBF, 1 << 20);
    int receiving = (int)number();
    shown.qp_count = (unsigned)number();
    shown.depth = (unsigned)number();
    shown.length = (size_t)number();
    shown.message_bytes = (size_t)number();
    shown.remote_address = (uint64_t)number();
    shown.rkey = (uint32_t)number();
    shown.lkey = (uint32_t)number();
    shown.cq = &cq;
    shown.memory = malloc(shown.length);
    for (size_t at = 0; at < shown.length; at++)
        shown.memory[at] = (uint8_t)(at * 31 + (at >> 8) * 7);
    for (unsigned i = 0; i < shown.qp_count; i++) {
        qps[i].number = i;
        shown.qps[i] = &qps[i];
        shown.qp_numbers[i] = (uint32_t)number();
    }
    struct transfer theirs = shown;
    int code = receiving ? receive_start(&theirs) : 0;
    if (receiving && !code) {
        fprintf(asks, "G\n");
        number();
    }
    if (!code)
        code = receiving ? receive_all(&theirs) : send_all(&theirs);
    fprintf(asks, "E %d\n", code);
    fflush(asks);
    number(); /* the judge has seen it */
    return 0;
}
