/* lib_mrc.so: OCP's control API. The service reads and writes the caller's structures in this program's memory. */
#define _GNU_SOURCE
#include "mrc_context.h"
#include "mrc_ctl_abi.h"

#include <string.h>
#include <time.h>

#define SECOND_NS 1000000000ull
#define LOOK_NS 100000 /* interval at which answers to probes are fetched */

static const char *const algorithms[] = {"uet-1.0-nscc", NULL};

static uint64_t at(const void *pointer) { return (uintptr_t)pointer; }

/* Send a request to the service. Return 0 or an errno. */
static int ask(struct mrc_context *context, uint64_t what, uint64_t a, uint64_t b, uint64_t c, uint64_t d,
               uint64_t *values)
{
    const uint64_t args[] = {what, a, b, c, d};
    uint64_t unused[2];

    return mrclab_control(context->verbs, args, 5, values ? values : unused);
}

/* Send a request about a profile or a port: its number, the caller's structure, and the mask of attributes. */
static int object(struct mrc_context *context, uint64_t what, uint64_t id, void *attr, int mask, uint64_t *values)
{
    if (!attr)
        return minus(EINVAL);
    return minus(ask(context, what, id, at(attr), (uint32_t)mask, 0, values));
}

EXPORT int mrc_ctl_query_device(struct ibv_context *verbs, struct mrc_ctl_device_attr *attr)
{
    struct mrc_context context = {verbs};
    int error = ask(&context, WIRE_CONTROL_QUERY_DEVICE, at(attr), 0, 0, 0, NULL);

    if (!error)
        attr->cc.algorithms = (const char **)(uintptr_t)algorithms;
    return minus(error);
}

EXPORT int mrc_ctl_query_device_ex(struct ibv_context *verbs, struct mrc_context *context,
                                   struct mrc_ctl_device_attr *attr, int *supported)
{
    (void)context;
    if (supported)
        *supported = 1;
    return mrc_ctl_query_device(verbs, attr);
}

EXPORT void mrc_ctl_query_version(uint32_t *current, uint32_t *oldest, uint32_t *vendor, uint32_t *oldest_vendor)
{
    mrc_query_version(current, oldest, vendor, oldest_vendor);
}

EXPORT int mrc_ctl_query_port(struct mrc_context *context, uint8_t port, struct mrc_ctl_port_attr *attr, int mask)
{
    return object(context, WIRE_CONTROL_QUERY_PORT, port, attr, mask, NULL);
}

EXPORT int mrc_ctl_modify_port(struct mrc_context *context, uint8_t port, struct mrc_ctl_port_attr *attr, int mask)
{
    return object(context, WIRE_CONTROL_MODIFY_PORT, port, attr, mask, NULL);
}

EXPORT int mrc_ctl_modify_ev_fmt_profile(struct mrc_context *context, uint64_t id,
                                         struct mrc_ctl_ev_fmt_profile_attr *attr, int mask)
{
    return object(context, WIRE_CONTROL_MODIFY_FORMAT, id, attr, mask, NULL);
}

EXPORT int mrc_ctl_query_ev_fmt_profile(struct mrc_context *context, uint64_t id,
                                        struct mrc_ctl_ev_fmt_profile_attr *attr, int mask)
{
    return object(context, WIRE_CONTROL_QUERY_FORMAT, id, attr, mask, NULL);
}

EXPORT int mrc_ctl_modify_ev_profile(struct mrc_context *context, uint64_t id, struct mrc_ctl_ev_profile_attr *attr,
                                     int mask)
{
    return object(context, WIRE_CONTROL_MODIFY_EVS, id, attr, mask, NULL);
}

EXPORT int mrc_ctl_query_ev_profile(struct mrc_context *context, uint64_t id, struct mrc_ctl_ev_profile_attr *attr,
                                    int mask)
{
    return object(context, WIRE_CONTROL_QUERY_EVS, id, attr, mask, NULL);
}

EXPORT int mrc_ctl_modify_cc_profile(struct mrc_context *context, uint64_t id, struct mrc_ctl_cc_profile_attr *attr,
                                     int mask)
{
    return object(context, WIRE_CONTROL_MODIFY_CC, id, attr, mask, NULL);
}

EXPORT int mrc_ctl_query_cc_profile(struct mrc_context *context, uint64_t id, struct mrc_ctl_cc_profile_attr *attr,
                                    int mask)
{
    uint64_t values[2];

    if (object(context, WIRE_CONTROL_QUERY_CC, id, attr, mask, values))
        return -1;
    if (mask & MRC_CTL_CC_ALGORITHM)
        attr->algorithm = values[0] ? algorithms[0] : NULL;
    return 0;
}

EXPORT struct mrc_cq *mrc_ctl_create_ev_event_cq(struct mrc_context *context, int cqe, void *user,
                                                 struct mrc_comp_channel *channel, int vector)
{
    struct mrc_cq *cq = mrc_create_cq(context, cqe, user, channel, vector);

    if (!cq)
        return NULL;
    int error = ask(context, WIRE_CONTROL_WATCH_EVS, cq_of((struct ibv_cq *)cq)->id, 0, 0, 0, NULL);
    if (error) {
        mrc_destroy_cq(cq);
        errno = error;
        return NULL;
    }
    return cq;
}

EXPORT int mrc_ctl_poll_ev_event(struct mrc_cq *cq, int count, struct mrc_ctl_ev_event *events)
{
    struct cq *queue = cq_of((struct ibv_cq *)cq);
    struct mrc_context context = {queue->ibv.context};
    uint64_t values[2];
    int error = count < 0 ? EINVAL
                          : ask(&context, WIRE_CONTROL_POLL_EVS, queue->id, at(events), (uint64_t)count, 0, values);

    return error ? -error : (int)values[0];
}

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

EXPORT int mrc_ctl_ep_batch_send_wait(struct mrc_context *context, uint8_t dscp, int op, struct mrc_ctl_ep_req *requests,
                                      int count, uint32_t timeout_ns, struct mrc_ctl_ep_rsp *responses, int *got)
{
    const struct timespec pause = {.tv_nsec = LOOK_NS};
    uint64_t end = now_ns() + timeout_ns, batch[2], values[2];

    *got = 0;
    if (count <= 0 || !requests || !responses)
        return minus(EINVAL);
    const uint64_t args[] = {WIRE_CONTROL_PROBE, dscp, (uint32_t)op, at(requests), (uint32_t)count, timeout_ns};
    int error = mrclab_control(context->verbs, args, 6, batch);
    if (error)
        return minus(error);
    for (;;) {
        bool late = now_ns() >= end;
        error = ask(context, WIRE_CONTROL_PROBED, batch[0], at(responses), 0, 0, values);
        if (error)
            break;
        *got = (int)values[0];
        if (!values[1])
            break;
        if (late) {
            error = ETIMEDOUT;
            break;
        }
        nanosleep(&pause, NULL);
    }
    ask(context, WIRE_CONTROL_FORGET_PROBES, batch[0], 0, 0, 0, NULL);
    return minus(error);
}
