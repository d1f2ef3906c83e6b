/* The part of the MRC API that this lab uses. Its types for requests and completions are those of libibverbs. */
#pragma once
#include <infiniband/verbs.h>

struct mrc_qp; /* a queue pair: requests of one connection, sprayed over all paths */
struct mrc_cq; /* a completion queue, which queue pairs may share */

/* Post a list of requests to write. Return 0, or an errno with the first request that was not taken in *bad: ENOMEM if
 * the queue is full. The bytes must not change until the request has completed. */
int mrc_post_send(struct mrc_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);

/* Post receives. Each takes one immediate value of the peer; it needs no memory (num_sge 0). Return as mrc_post_send. */
int mrc_post_recv(struct mrc_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

/* Return how many completions were put into wc: 0 to count. It does not wait.
 * wr_id, status and qp_num are always set; everything else only if status is IBV_WC_SUCCESS. */
int mrc_poll_cq(struct mrc_cq *cq, int count, struct ibv_wc *wc);
