/* Lab 9: write and break an MRC program. A mistake. */
#include "transfer.h"
#include <arpa/inet.h> /* htonl, ntohl */
#include <stdlib.h>

#define BATCH 16

enum state { WAITING, UNDER_WAY, DONE };

/* Step 1: how many messages there are. The last may be shorter. */
static size_t message_count(const struct transfer *t)
{
    return (t->length + t->message_bytes - 1) / t->message_bytes;
}

/* Step 2: post the write of one message to a queue pair. Return what mrc_post_send returns. */
static int post_message(struct transfer *t, unsigned qp, size_t number)
{
    size_t at = number * t->message_bytes, left = t->length - at;
    size_t bytes = left < t->message_bytes ? left : t->message_bytes;
    struct ibv_sge piece = {.addr = (uintptr_t)(t->memory + at), .length = (uint32_t)bytes, .lkey = t->lkey};
    struct ibv_send_wr write = {.wr_id = number, .sg_list = &piece, .num_sge = 1};
    struct ibv_send_wr *bad;

    write.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    write.send_flags = IBV_SEND_SIGNALED;
    write.imm_data = htonl((uint32_t)number);
    write.wr.rdma.remote_addr = t->remote_address + at;
    write.wr.rdma.rkey = t->rkey;
    return mrc_post_send(t->qps[qp], &write, &bad);
}

/* Which of our queue pairs a completion is of. */
static unsigned index_of(const struct transfer *t, const struct ibv_wc *wc)
{
    unsigned qp = 0;

    while (qp < t->qp_count - 1 && t->qp_numbers[qp] != wc->qp_num)
        qp++;
    return qp;
}

/* Steps 3 to 6 */
int send_all(struct transfer *t)
{
    size_t count = message_count(t), done = 0;
    unsigned under_way[MOST_QPS] = {0}, alive = t->qp_count;
    char dead[MOST_QPS] = {0};
    enum state *states = calloc(count, sizeof(*states));
    struct ibv_wc wc[BATCH];

    while (states && done < count && alive) {
        size_t next = 0;
        for (unsigned qp = 0; qp < t->qp_count; qp++) {
            while (!dead[qp] && under_way[qp] < t->depth) {
                while (next < count && states[next] != WAITING)
                    next++;
                if (next == count || post_message(t, qp, next))
                    break;
                states[next] = UNDER_WAY;
                under_way[qp]++;
            }
        }
        int found = mrc_poll_cq(t->cq, BATCH, wc);
        for (int i = 0; i < found; i++) {
            unsigned qp = index_of(t, &wc[i]);
            under_way[qp]--;
            if (wc[i].status == IBV_WC_SUCCESS) {
                states[wc[i].wr_id] = DONE;
                done++;
                continue;
            }
            states[wc[i].wr_id] = WAITING; /* it may be there or not: writing it again does no harm */
            if (!dead[qp])
                alive--;
            dead[qp] = 1;
        }
    }
    free(states);
    return done == count ? 0 : -1;
}

static int post_receive(struct transfer *t, unsigned qp)
{
    struct ibv_recv_wr receive = {.wr_id = qp}, *bad;

    return mrc_post_recv(t->qps[qp], &receive, &bad);
}

/* Step 7 */
int receive_start(struct transfer *t)
{
    for (unsigned qp = 0; qp < t->qp_count; qp++)
        for (unsigned i = 0; i < t->depth; i++)
            if (post_receive(t, qp))
                return -1;
    return 0;
}

int receive_all(struct transfer *t)
{
    size_t count = message_count(t), come = 0;
    unsigned alive = t->qp_count;
    char dead[MOST_QPS] = {0};
    char *seen = calloc(count, 1);
    struct ibv_wc wc[BATCH];

    while (seen && come < count && alive) {
        int found = mrc_poll_cq(t->cq, BATCH, wc);
        for (int i = 0; i < found; i++) {
            unsigned qp = index_of(t, &wc[i]);
            if (wc[i].status != IBV_WC_SUCCESS) {
                if (!dead[qp])
                    alive--;
                dead[qp] = 1;
                continue;
            }
            size_t number = ntohl(wc[i].imm_data);
            if (number < count) {
                seen[number] = 1;
                come++;
            }
            post_receive(t, qp);
        }
    }
    free(seen);
    return come >= count ? 0 : -1;
}
