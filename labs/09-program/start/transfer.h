/* The functions that you write in transfer.c, and what they are given. Do not change this file: the checks have their own. */
#pragma once
#include "lab_mrc.h"
#include <stddef.h>
#include <stdint.h>

#define MOST_QPS 8

struct transfer {
    unsigned qp_count;
    struct mrc_qp *qps[MOST_QPS];
    uint32_t qp_numbers[MOST_QPS]; /* qp_num in a completion of qps[i] */
    struct mrc_cq *cq;             /* of all queue pairs, for sends and receives */
    unsigned depth;                /* the most requests, and the most receives, of each queue pair under way */
    uint8_t *memory;               /* the sender's data */
    uint32_t lkey;                 /* of memory */
    uint64_t remote_address;       /* where the data goes in the receiver's memory */
    uint32_t rkey;                 /* of the receiver's memory */
    size_t length;                 /* bytes in all */
    size_t message_bytes;          /* message n has the bytes from n * message_bytes on; the last may be shorter */
};

/* Write all messages into the receiver's memory, each with its number as immediate. Return 0 once all have completed,
 * -1 if no queue pair is left. */
int send_all(struct transfer *t);

/* Post the first receives. Called before the sender may start. Return 0, or -1 if one is not taken. */
int receive_start(struct transfer *t);

/* Return 0 once every message has come, -1 if no queue pair is left. */
int receive_all(struct transfer *t);
