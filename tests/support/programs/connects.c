/* Two programs connect a pair of queue pairs, write 8 bytes each way and destroy it, COUNT times.
 *
 *   connects server PORT COUNT      connects client PORT COUNT HOST
 *
 * The server says "tenth" after a tenth of them and "all" at the end, and waits for a line after each. */
#include "programs.h"

static void once(const struct nic *nic, int fd, uint64_t number)
{
    struct ibv_qp *qp = make_qp(nic);
    struct end ours = end_of(nic, qp), theirs;
    volatile uint64_t *came = (void *)nic->memory, *goes = (void *)(nic->memory + 64);
    struct ibv_sge sge = {(uintptr_t)goes, 8, nic->mr->lkey};
    struct ibv_send_wr wr = {.wr_id = number, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
    struct ibv_wc wc;

    swap_ends(fd, &ours, &theirs);
    connect_qp(qp, &theirs);
    swap_ends(fd, &ours, &theirs);
    *goes = number;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = theirs.address;
    wr.wr.rdma.rkey = theirs.rkey;
    CHECK(!ibv_post_send(qp, &wr, &bad));
    while (!ibv_poll_cq(nic->cq, 1, &wc))
        ;
    CHECK(!wc.status && wc.wr_id == number);
    while (*came != number)
        ibv_poll_cq(nic->cq, 1, &wc);
    swap_ends(fd, &ours, &theirs);
    CHECK(!ibv_destroy_qp(qp));
}

static void tell(const char *word)
{
    printf("%s\n", word);
    fflush(stdout);
    CHECK(getchar() == '\n');
}

int main(int argc, char **argv)
{
    CHECK(argc >= 4);
    int serving = !strcmp(argv[1], "server"), count = atoi(argv[3]);
    struct nic nic = open_nic(4096);
    int fd = meet(serving ? NULL : argv[4], argv[2]);

    for (int i = 1; i <= count; i++) {
        once(&nic, fd, (uint64_t)i);
        if (serving && (i == count / 10 || i == count))
            tell(i == count ? "all" : "tenth");
    }
    printf("ok %d connections\n", count);
    return 0;
}
