/* Asks for everything that MRC does not have, and says the errno of each answer. */
#define _GNU_SOURCE
#include "programs.h"

#include <dlfcn.h>

static struct nic nic;

static void said(const char *what, int error)
{
    printf("%s: %s\n", what, error == EOPNOTSUPP ? "EOPNOTSUPP" : strerror(error));
}

static void said_of(const char *what, const void *object) { said(what, object ? 0 : errno); }

static void said_minus(const char *what, int result)
{
    CHECK(result == -1);
    said(what, errno);
}

static void said_rdma(const char *name)
{
    int (*function)(void) = (int (*)(void))(uintptr_t)dlsym(RTLD_DEFAULT, name);

    CHECK(function);
    said_minus(name, function());
}

static void create(const char *what, enum ibv_qp_type type, struct ibv_srq *srq)
{
    struct ibv_qp_cap cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1};
    struct ibv_qp_init_attr init = {.send_cq = nic.cq, .recv_cq = nic.cq, .srq = srq, .cap = cap, .qp_type = type};

    said_of(what, ibv_create_qp(nic.pd, &init));
}

static void post(struct ibv_qp *qp, const char *what, enum ibv_wr_opcode opcode)
{
    struct ibv_sge sge = {(uintptr_t)nic.memory, 8, nic.mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcode}, *bad = NULL;
    int error = ibv_post_send(qp, &wr, &bad);

    CHECK(bad == &wr);
    said(what, error);
}

int main(void)
{
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = 1, .max_sge = 1}};
    struct ibv_srq_init_attr_ex srq_ex = {.attr = srq.attr};
    struct ibv_xrcd_init_attr xrcd = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1};
    struct ibv_alloc_dm_attr dm = {.length = 4096};
    struct ibv_cq_init_attr_ex cq = {.cqe = 16};
    struct ibv_ah_attr ah = {.port_num = 1};
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_ERR};
    union ibv_gid group = {{0}};
    struct ibv_wc wc = {0};

    nic = open_nic(4096);
    struct ibv_qp *qp = make_qp(&nic);
    CHECK(!ibv_modify_qp(qp, &to, IBV_QP_STATE));
    post(qp, "SEND", IBV_WR_SEND);
    post(qp, "SEND with immediate", IBV_WR_SEND_WITH_IMM);
    post(qp, "RDMA READ", IBV_WR_RDMA_READ);
    post(qp, "atomic compare and swap", IBV_WR_ATOMIC_CMP_AND_SWP);
    post(qp, "atomic fetch and add", IBV_WR_ATOMIC_FETCH_AND_ADD);
    create("a queue pair of type UD", IBV_QPT_UD, NULL);
    create("a queue pair of type UC", IBV_QPT_UC, NULL);
    create("a queue pair of type XRC", IBV_QPT_XRC_SEND, NULL);
    create("a queue pair of type RAW_PACKET", IBV_QPT_RAW_PACKET, NULL);
    create("a queue pair with an SRQ", IBV_QPT_RC, (struct ibv_srq *)&srq);
    said_of("ibv_create_srq", ibv_create_srq(nic.pd, &srq));
    srq_ex.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD;
    srq_ex.srq_type = IBV_SRQT_XRC;
    said_of("ibv_create_srq_ex", ibv_create_srq_ex(nic.context, &srq_ex));
    said_of("ibv_open_xrcd", ibv_open_xrcd(nic.context, &xrcd));
    said_of("ibv_alloc_mw", ibv_alloc_mw(nic.pd, IBV_MW_TYPE_1));
    said_of("ibv_alloc_dm", ibv_alloc_dm(nic.context, &dm));
    said_of("ibv_create_cq_ex", ibv_create_cq_ex(nic.context, &cq));
    said_of("ibv_create_ah", ibv_create_ah(nic.pd, &ah));
    said("ibv_attach_mcast", ibv_attach_mcast(qp, &group, 0));
    said("ibv_resize_cq", ibv_resize_cq(nic.cq, 128));
    said_minus("ibv_rereg_mr", ibv_rereg_mr(nic.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0));
    said_minus("ibv_init_ah_from_wc", ibv_init_ah_from_wc(nic.context, 1, &wc, NULL, &ah));
    said_rdma("rdma_create_id");
    said_rdma("rdma_create_ep");
    return 0;
}
