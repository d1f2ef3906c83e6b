/* Polls a completion queue after the end of the session, while another thread still tries to create queue pairs. */
#include "programs.h"

#include <pthread.h>

#define TIMES 100000

static int over;

static void *poll_on(void *cq)
{
    struct ibv_wc wc;

    while (!__atomic_load_n(&over, __ATOMIC_SEQ_CST))
        CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
    return NULL;
}

int main(void)
{
    struct nic nic = open_nic(4096);
    struct ibv_qp_cap cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1};
    struct ibv_qp_init_attr init = {.send_cq = nic.cq, .recv_cq = nic.cq, .cap = cap, .qp_type = IBV_QPT_RC};
    struct ibv_async_event event;
    pthread_t thread;

    CHECK(write(nic.context->cmd_fd, "x", 1) == 1); /* no request: the service ends the session */
    CHECK(!ibv_get_async_event(nic.context, &event) && event.event_type == IBV_EVENT_DEVICE_FATAL);
    CHECK(!pthread_create(&thread, NULL, poll_on, nic.cq));
    for (int i = 0; i < TIMES; i++)
        CHECK(!ibv_create_qp(nic.pd, &init));
    __atomic_store_n(&over, 1, __ATOMIC_SEQ_CST);
    CHECK(!pthread_join(thread, NULL));
    printf("ok\n");
    return 0;
}
