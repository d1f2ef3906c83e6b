/* Changes attributes of a queue pair, also to invalid values. */
#include "programs.h"

int main(void)
{
    struct nic nic = open_nic(4096);
    struct ibv_qp *qp = make_qp(&nic);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 7}, found;
    struct ibv_qp_init_attr init;

    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT) == EINVAL);
    attr.qp_state = IBV_QPS_RTR; /* without an address */
    attr.dest_qp_num = 99;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_DEST_QPN) == EINVAL);
    CHECK(!ibv_query_qp(qp, &found, IBV_QP_STATE | IBV_QP_DEST_QPN | IBV_QP_PORT, &init));
    CHECK(found.qp_state == IBV_QPS_INIT && found.port_num == 1 && found.dest_qp_num == 0);
    printf("ok\n");
    return 0;
}
