/* Destroys a queue pair and a completion queue while another thread has not acknowledged their events yet.
 *
 * Arguments: the socket of another host's NIC service. */
#include "programs.h"

#include <pthread.h>

static int acknowledged;

static void *acknowledge_late(void *event)
{
    usleep(300000);
    __atomic_store_n(&acknowledged, 1, __ATOMIC_SEQ_CST);
    ibv_ack_async_event(event);
    return NULL;
}

/* Read the next event of a NIC, which another thread acknowledges later. */
static pthread_t take_event(const struct nic *nic, struct ibv_async_event *event, enum ibv_event_type type)
{
    pthread_t thread;

    CHECK(!ibv_get_async_event(nic->context, event) && event->event_type == type);
    acknowledged = 0;
    CHECK(!pthread_create(&thread, NULL, acknowledge_late, event));
    return thread;
}

static int is_acknowledged(void) { return __atomic_load_n(&acknowledged, __ATOMIC_SEQ_CST); }

int main(int argc, char **argv)
{
    struct nic here = open_nic(4096), there;
    struct ibv_async_event event;
    struct ibv_recv_wr receive = {.wr_id = 1}, *bad_receive;

    CHECK(argc == 2 && !setenv("MRCLAB_NIC", argv[1], 1));
    there = open_nic(4096);
    struct ibv_qp *writer = make_qp(&here), *reader = make_qp(&there);
    struct end ours = end_of(&here, writer), theirs = end_of(&there, reader);
    connect_qp(writer, &theirs);
    connect_qp(reader, &ours);
    struct ibv_sge sge = {(uintptr_t)here.memory, 8, here.mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM}, *bad;
    wr.wr.rdma.remote_addr = theirs.address;
    wr.wr.rdma.rkey = theirs.rkey;
    CHECK(!ibv_post_send(writer, &wr, &bad)); /* the reader has posted no receive */
    pthread_t thread = take_event(&there, &event, IBV_EVENT_QP_FATAL);
    CHECK(event.element.qp == reader && !ibv_destroy_qp(reader) && is_acknowledged());
    CHECK(!pthread_join(thread, NULL));

    struct ibv_qp_attr to_error = {.qp_state = IBV_QPS_ERR};
    struct ibv_cq *small = ibv_create_cq(there.context, 1, NULL, NULL, 0);
    there.cq = small;
    struct ibv_qp *flushed = make_qp(&there);
    for (int i = 0; i < 2; i++)
        CHECK(!ibv_post_recv(flushed, &receive, &bad_receive));
    CHECK(!ibv_modify_qp(flushed, &to_error, IBV_QP_STATE));
    thread = take_event(&there, &event, IBV_EVENT_CQ_ERR);
    CHECK(event.element.cq == small && !ibv_destroy_qp(flushed));
    CHECK(!ibv_destroy_cq(small) && is_acknowledged());
    CHECK(!pthread_join(thread, NULL));
    printf("ok\n");
    return 0;
}
