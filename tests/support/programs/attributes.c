/* Changes attributes of a queue pair, also to invalid values. Then a peer without the right to write writes.
 *
 * Arguments: the socket of another host's NIC service. */
#include "programs.h"

/* The reader accepts no writes, although its memory does. */
static void write_without_right(const struct nic *here, const struct nic *there)
{
    struct ibv_qp *writer = make_qp(here), *reader = make_qp(there);
    struct ibv_qp_attr closed = {.qp_state = IBV_QPS_INIT, .qp_access_flags = IBV_ACCESS_LOCAL_WRITE};
    struct ibv_sge sge = {(uintptr_t)here->memory, 8, here->mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED}, *bad;
    struct end ours = end_of(here, writer), theirs = end_of(there, reader);
    struct ibv_wc wc;

    CHECK(!ibv_modify_qp(reader, &closed, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS));
    connect_qp(writer, &theirs);
    connect_qp(reader, &ours);
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.wr.rdma.remote_addr = theirs.address;
    wr.wr.rdma.rkey = theirs.rkey;
    memset(here->memory, 1, 8);
    CHECK(!ibv_post_send(writer, &wr, &bad));
    while (!ibv_poll_cq(here->cq, 1, &wc))
        ;
    CHECK(wc.status == IBV_WC_REM_OP_ERR && !there->memory[0]);
}

int main(int argc, char **argv)
{
    struct nic nic = open_nic(4096), there;
    struct ibv_qp *qp = make_qp(&nic);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 7}, found;
    struct ibv_qp_init_attr init;

    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT) == EINVAL);
    attr.qp_state = IBV_QPS_RTR; /* without an address */
    attr.dest_qp_num = 99;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_DEST_QPN) == EINVAL);
    CHECK(!ibv_query_qp(qp, &found, IBV_QP_STATE | IBV_QP_DEST_QPN | IBV_QP_PORT, &init));
    CHECK(found.qp_state == IBV_QPS_INIT && found.port_num == 1 && found.dest_qp_num == 0);
    CHECK(argc == 2 && !setenv("MRCLAB_NIC", argv[1], 1));
    there = open_nic(4096);
    write_without_right(&nic, &there);
    printf("ok\n");
    return 0;
}
