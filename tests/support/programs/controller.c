/* A controller, written against the control API alone.
 *
 *   controller deny PLANE T1     deny the EVs of the NIC's own profile that lead over one T1
 *   controller allow PLANE T1    allow them again
 *   controller probe HOST_GID    probe all EVs to a host until each has answered, and print the answers
 *   controller refuse            make the mistakes that are refused, and print the errors */
#include "mrc_ctl_abi.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 4096
#define TIMEOUT_NS 500000000u
#define TRIES 60
#define CHECK(condition)                                                                                       \
    do {                                                                                                       \
        if (!(condition)) {                                                                                    \
            fprintf(stderr, "controller: line %d: %s: %s\n", __LINE__, #condition, strerror(errno));           \
            exit(1);                                                                                           \
        }                                                                                                      \
    } while (0)

static struct mrc_ctl_ev_op_entry entries[MOST];
static struct ibv_context *verbs;
static struct mrc_context *context;

static int query(void)
{
    struct mrc_ctl_ev_profile_attr attr = {.ev_op = {MRC_CTL_EV_QUERY_ARRAY, entries, MOST}};

    CHECK(!mrc_ctl_query_ev_profile(context, 0, &attr, MRC_CTL_EVP_EV_OP));
    CHECK(attr.current_state == MRC_CTL_ONLINE && attr.mode == MRC_CTL_EV_AUTO);
    return attr.ev_op.count;
}

/* The NIC's own EVs: the plane in the high half, the T1 in the low bits of the low half. */
static int leads_over(const struct mrc_ctl_ev *ev, int plane, int t1)
{
    return (ev->bytes[0] << 8 | ev->bytes[1]) == plane && ((ev->bytes[2] & 0x3f) << 8 | ev->bytes[3]) == t1;
}

static void set(int plane, int t1, uint32_t state)
{
    static struct mrc_ctl_ev_op_entry chosen[MOST];
    int count = query(), found = 0;

    for (int i = 0; i < count; i++)
        if (leads_over(&entries[i].ev, plane, t1)) {
            CHECK(entries[i].ev.port == plane + 1);
            chosen[found] = entries[i];
            chosen[found++].state = state;
        }
    struct mrc_ctl_ev_profile_attr attr = {.ev_op = {MRC_CTL_EV_MODIFY_STATE, chosen, found}};
    CHECK(!mrc_ctl_modify_ev_profile(context, 0, &attr, MRC_CTL_EVP_EV_OP));
    query();
    for (int i = 0; i < count; i++)
        if (leads_over(&entries[i].ev, plane, t1))
            CHECK((entries[i].state == MRC_CTL_EV_DENIED) == (state == MRC_CTL_EV_DENIED));
    printf("%d of %d\n", found, count);
}

/* A probe may be lost or late, and a NIC does not send it again: that is the controller's part. */
static void probe(const char *address)
{
    static struct mrc_ctl_ep_req requests[MOST];
    static struct mrc_ctl_ep_rsp responses[MOST];
    static int answered[MOST];
    int known = query(), answers = 0, got;

    for (int tries = 0; answers < known && tries < TRIES; tries++) {
        int count = 0;

        for (int i = 0; i < known; i++) {
            if (answered[i])
                continue;
            struct mrc_ctl_ep_req *request = &requests[count++];
            *request = (struct mrc_ctl_ep_req){.id = (uint16_t)(100 + i), .mode = MRC_CTL_FMT_STEV, .ev = entries[i].ev};
            CHECK(!ibv_query_gid(verbs, 1, 3, &request->sgid));
            memset(request->dgid.raw + 10, 0xff, 2);
            CHECK(inet_pton(AF_INET, address, request->dgid.raw + 12) == 1);
        }
        int failed = mrc_ctl_ep_batch_send_wait(context, 0, MRC_CTL_EP_PROBE, requests, count, TIMEOUT_NS, responses, &got);
        CHECK(failed ? errno == ETIMEDOUT && got < count : got == count);
        for (int i = 0; i < got; i++) {
            int ev = responses[i].id - 100;
            CHECK(ev >= 0 && ev < known && !answered[ev] && responses[i].rtt_ns > 0);
            CHECK(responses[i].port == entries[ev].ev.port);
            answered[ev] = 1;
        }
        answers += got;
    }
    printf("%d answers\n", answers);
}

static void refuse(void)
{
    struct mrc_ctl_ev_profile_attr attr = {.new_state = MRC_CTL_ONLINE};
    struct mrc_ctl_device_attr device;
    struct mrc_ctl_port_attr port;

    CHECK(!mrc_ctl_query_device(verbs, &device));
    CHECK(!strcmp(device.cc.algorithms[0], "uet-1.0-nscc") && !device.cc.algorithms[1]);
    CHECK(device.protocol_versions == 1 && device.port_mask == 6 && device.ev.max_per_profile == 4096);
    CHECK(mrc_ctl_modify_ev_profile(context, 9, &attr, MRC_CTL_EVP_STATE) == -1 && errno == EINVAL);
    CHECK(mrc_ctl_modify_ev_profile(context, 0, &attr, MRC_CTL_EVP_STATE) == -1 && errno == EPERM);
    CHECK(mrc_ctl_query_port(context, 3, &port, MRC_CTL_PORT_ADMIN) == -1 && errno == EINVAL);
    CHECK(!mrc_ctl_query_port(context, 2, &port, MRC_CTL_PORT_ADMIN) && port.admin == 1);
    struct mrc_cq *events = mrc_ctl_create_ev_event_cq(context, 16, NULL, NULL, 0);
    struct mrc_ctl_ev_event event;
    CHECK(events && mrc_ctl_poll_ev_event(events, 1, &event) == 0);
    CHECK(!mrc_destroy_cq(events));
    printf("refused\n");
}

int main(int argc, char **argv)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);

    CHECK(argc >= 2 && list && count == 1 && (verbs = ibv_open_device(list[0])));
    ibv_free_device_list(list);
    CHECK((context = mrc_create_context(verbs, NULL)));
    if (!strcmp(argv[1], "refuse"))
        refuse();
    else if (!strcmp(argv[1], "probe"))
        probe(argv[2]);
    else
        set(atoi(argv[2]), atoi(argv[3]), strcmp(argv[1], "deny") ? MRC_CTL_EV_GOOD : MRC_CTL_EV_DENIED);
    CHECK(!mrc_destroy_context(context) && !ibv_close_device(verbs));
    return 0;
}
