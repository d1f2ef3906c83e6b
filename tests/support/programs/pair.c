/* Two programs, each on a host: the client writes messages with immediates into slots of the server's memory, the
 * server checks every byte and returns credits by writing a counter into the client's memory.
 *
 *   pair server PORT SIZE COUNT [events|fork|unmap|dereg]      pair client PORT SIZE COUNT HOST [pause]
 *
 * With `pause` the client says "half" after half of its messages, and goes on after a line on standard input.
 * With `fork` the server has children in between that write into its slots, exit or become another program; with
 * `unmap` and `dereg` it removes the memory after half of its messages, and says which event that led to. */
#include "programs.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define SLOTS 8
#define POLLS_PER_LOOK 1000
#ifdef MRC
#include "mrc_abi.h"
typedef struct mrc_cq queue;
typedef struct mrc_qp pair;
typedef struct mrc_comp_channel channel;
static struct mrc_context *mrc;
#define POLL mrc_poll_cq
#define SEND mrc_post_send
#define RECEIVE mrc_post_recv
#else
typedef struct ibv_cq queue;
typedef struct ibv_qp pair;
typedef struct ibv_comp_channel channel;
#define POLL ibv_poll_cq
#define SEND ibv_post_send
#define RECEIVE ibv_post_recv
#endif

static struct ibv_context *context;
static struct ibv_pd *pd;
static queue *cq;
static pair *qp;
static channel *events;
static struct ibv_mr *mr;
static uint8_t *memory;
static size_t size, length;
static int bootstrap, listening;
static struct end ours, theirs;

static void modify(struct ibv_qp_attr *attr, int mask)
{
#ifdef MRC
    CHECK(!mrc_modify_qp(qp, attr, mask, NULL, 0));
#else
    CHECK(!ibv_modify_qp(qp, attr, mask));
#endif
}

static void make(int with_events)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    struct ibv_qp_cap cap = {.max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 2, .max_recv_sge = 1, .max_inline_data = 64};

    CHECK(list && count == 1 && !strcmp(ibv_get_device_name(list[0]), "mrc0"));
    CHECK((context = ibv_open_device(list[0])));
    ibv_free_device_list(list);
    CHECK((pd = ibv_alloc_pd(context)));
    length = SLOTS * size + 4096;
    memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    CHECK((mr = ibv_reg_mr(pd, memory, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
#ifdef MRC
    struct mrc_context_attr attr = {0};
    struct mrc_device_attr device;
    int supported = 0;
    CHECK(!mrc_query_device(context, &device, &supported) && supported);
    CHECK((mrc = mrc_create_context(context, &attr)));
    if (with_events)
        CHECK(!mrc_create_comp_channel(mrc, &events));
    CHECK((cq = mrc_create_cq(mrc, 256, NULL, events, 0)));
    struct mrc_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = cap, .pd = pd};
    CHECK((qp = mrc_create_qp(mrc, &init)));
    CHECK(!mrc_get_qpn(qp, &ours.qpn));
#else
    if (with_events)
        CHECK((events = ibv_create_comp_channel(context)));
    CHECK((cq = ibv_create_cq(context, 256, NULL, events, 0)));
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = cap, .qp_type = IBV_QPT_RC};
    CHECK((qp = ibv_create_qp(pd, &init)));
    ours.qpn = qp->qp_num;
#endif
    ours.psn = (uint32_t)(getpid() * 2654435761u) & 0xFFFFFF;
    ours.rkey = mr->rkey;
    ours.address = (uintptr_t)memory;
    CHECK(!ibv_query_gid(context, 1, 3, &ours.gid));
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    modify(&to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static void join(void)
{
    struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = theirs.qpn, .rq_psn = theirs.psn};
    struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .sq_psn = ours.psn};

    rtr.ah_attr.is_global = 1;
    rtr.ah_attr.port_num = 1;
    rtr.ah_attr.grh.dgid = theirs.gid;
    rtr.ah_attr.grh.sgid_index = 3;
    modify(&rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
    modify(&rts, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

static void post_receive(uint64_t id)
{
    struct ibv_recv_wr wr = {.wr_id = id}, *bad;

    CHECK(!RECEIVE(qp, &wr, &bad));
}

static void post_write(uint64_t id, void *from, uint32_t bytes, uint64_t to, int imm, int flags)
{
    struct ibv_sge sge = {(uintptr_t)from, bytes, mr->lkey};
    struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;

    wr.send_flags = (unsigned)flags;
    wr.wr.rdma.remote_addr = to;
    wr.wr.rdma.rkey = theirs.rkey;
    if (imm >= 0) {
        wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        wr.imm_data = htonl((uint32_t)imm);
    }
    CHECK(!(errno = SEND(qp, &wr, &bad)));
}

/* Who only waits hears nothing of the other's end from the NIC: MRC keeps nothing alive. */
static void still_there(void)
{
    char byte;
    ssize_t n = recv(bootstrap, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

    if (!n || (n < 0 && errno != EAGAIN)) {
        printf("the peer is gone\n");
        exit(4);
    }
}

static void sleep_for_event(void)
{
    struct pollfd fds[] = {{.events = POLLIN}, {.fd = bootstrap, .events = POLLIN}};

#ifdef MRC
    CHECK(!mrc_get_comp_channel_fd(events, &fds[0].fd));
#else
    fds[0].fd = events->fd;
#endif
    while (!(fds[0].revents & POLLIN)) {
        CHECK(poll(fds, 2, -1) > 0);
        if (fds[1].revents) {
            still_there();
            fds[1].fd = -1; /* it has said that it is done */
        }
    }
}

static void await(struct ibv_wc *wc)
{
    int n;

    for (unsigned empty = 0; !(n = POLL(cq, 1, wc)); empty++) {
        if (listening && empty % POLLS_PER_LOOK == 0)
            still_there();
        if (!events)
            continue;
#ifdef MRC
        CHECK(!mrc_req_notify_cq(cq, 0));
#else
        CHECK(!ibv_req_notify_cq(cq, 0));
#endif
        if ((n = POLL(cq, 1, wc)))
            break;
        sleep_for_event();
        queue *which;
        void *user;
#ifdef MRC
        CHECK(!mrc_get_cq_event(events, &which, &user));
        mrc_ack_cq_events(which, 1);
#else
        CHECK(!ibv_get_cq_event(events, &which, &user));
        ibv_ack_cq_events(which, 1);
#endif
        CHECK(which == cq);
    }
    CHECK(n == 1);
    if (wc->status) {
        printf("failed with status %d\n", wc->status);
        exit(3);
    }
}

static uint8_t pattern(int number, size_t at) { return (uint8_t)((size_t)number * 31 + at * 7 + (at >> 8)); }

/* A child that shares our pages until one of us writes to them, and our rings not at all. */
static void have_child(int becomes_another)
{
    int status;
    pid_t child = fork();

    CHECK(child >= 0);
    if (!child) {
        memset(memory, 0xEE, length);
        if (becomes_another)
            execlp("true", "true", NULL);
        exit(becomes_another);
    }
    CHECK(waitpid(child, &status, 0) == child && !status);
}

/* Remove what the client goes on to write into, and wait for the event of that. */
static void remove_memory(int unmap)
{
    struct ibv_async_event event;

    if (unmap)
        CHECK(!munmap(memory, SLOTS * size));
    else
        CHECK(!ibv_dereg_mr(mr));
    CHECK(!ibv_get_async_event(context, &event));
    printf("%s\n", ibv_event_type_str(event.event_type));
    ibv_ack_async_event(&event);
    exit(0);
}

static void serve(int count, const char *mode)
{
    volatile uint64_t *credit = (void *)(memory + SLOTS * size);
    struct ibv_wc wc;

    for (int i = 0; i < count;) {
        await(&wc);
        if (wc.opcode == IBV_WC_RDMA_WRITE)
            continue;
        CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.wc_flags == IBV_WC_WITH_IMM && wc.wr_id == (uint64_t)i);
        CHECK(ntohl(wc.imm_data) == (uint32_t)i && wc.byte_len == size);
        for (size_t at = 0; at < size; at++)
            CHECK(memory[(size_t)(i % SLOTS) * size + at] == pattern(i, at));
        post_receive((uint64_t)(SLOTS * 2 + i));
        i++;
        if (!strcmp(mode, "fork") && i % 16 == 0)
            have_child(i % 32 == 0);
        if ((!strcmp(mode, "unmap") || !strcmp(mode, "dereg")) && i == count / 2)
            remove_memory(*mode == 'u');
        *credit = (uint64_t)i;
        post_write(0, (void *)(uintptr_t)credit, 8, theirs.address + SLOTS * size, -1,
                   IBV_SEND_INLINE | (i % 16 && i != count ? 0 : IBV_SEND_SIGNALED));
    }
    do /* the last credit has arrived */
        await(&wc);
    while (wc.opcode != IBV_WC_RDMA_WRITE);
}

/* Nothing of ours is in flight: only a write reveals that the server is gone. */
static void probe(void)
{
    struct ibv_wc wc;
    size_t spare = SLOTS * size + 64;

    post_write(1, memory + spare, 8, theirs.address + spare, -1, IBV_SEND_SIGNALED);
    await(&wc);
    CHECK(wc.opcode == IBV_WC_RDMA_WRITE && wc.wr_id == 1);
}

static void feed(int count, int pause)
{
    volatile uint64_t *credit = (void *)(memory + SLOTS * size);
    int sent = 0, done = 0;
    struct ibv_wc wc;

    while (done < count) {
        if (pause && done == count / 2) {
            pause = 0;
            printf("half\n");
            fflush(stdout);
            CHECK(getchar() == '\n');
        }
        if (sent < count && (uint64_t)sent < *credit + SLOTS && sent < done + SLOTS) {
            uint8_t *slot = memory + (size_t)(sent % SLOTS) * size;
            for (size_t at = 0; at < size; at++)
                slot[at] = pattern(sent, at);
            post_write((uint64_t)sent, slot, (uint32_t)size, theirs.address + (size_t)(sent % SLOTS) * size, sent,
                       IBV_SEND_SIGNALED);
            sent++;
        } else if (sent > done) {
            await(&wc);
            CHECK(wc.opcode == IBV_WC_RDMA_WRITE && wc.wr_id == (uint64_t)done);
            done++;
        } else {
            probe();
        }
    }
    while (*credit != (uint64_t)count)
        probe();
}

int main(int argc, char **argv)
{
    CHECK(argc >= 5);
    int serving = !strcmp(argv[1], "server"), count = atoi(argv[4]);
    size = (size_t)atol(argv[3]);
    const char *mode = serving && argc > 5 ? argv[5] : "";
    make(!strcmp(mode, "events"));
    int fd = bootstrap = meet(serving ? NULL : argv[5], argv[2]);
    listening = serving;
    whole(fd, &ours, sizeof(ours), 1);
    whole(fd, &theirs, sizeof(theirs), 0);
    join();
    for (int i = 0; serving && i < SLOTS * 2; i++)
        post_receive((uint64_t)i);
    whole(fd, &(char){1}, 1, 1);
    whole(fd, &(char){0}, 1, 0);
    printf("connected\n");
    fflush(stdout);
    if (serving)
        serve(count, mode);
    else
        feed(count, argc > 6);
    whole(fd, &(char){1}, 1, 1);
    whole(fd, &(char){0}, 1, 0);
#ifdef MRC
    CHECK(!mrc_destroy_qp(qp) && !mrc_destroy_cq(cq) && (!events || !mrc_destroy_comp_channel(events)));
    CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !mrc_destroy_context(mrc) && !ibv_close_device(context));
#else
    CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && (!events || !ibv_destroy_comp_channel(events)));
    CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
#endif
    printf("ok %d messages of %zu bytes\n", count, size);
    return 0;
}
