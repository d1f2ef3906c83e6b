/* lib_mrc.so: OCP's MRC API. It calls the functions of libmrclab-verbs.so and uses the same objects. */
#define _GNU_SOURCE
#include "common.h"
#include "mrc_context.h"

#include <stdlib.h>
#include <string.h>

#define RESOLUTION 128 /* number of PSNs in one unit of mpr */
#define MAX_LINEAR 7
#define MAX_EXPONENTIAL 25 /* retries without end */
#define MAX_TIMEOUT 24
#define TRIM_NACK 1
#define SEND_OPS 3 /* mask: WRITE is 1, WRITE with immediate is 2 */
#define HINT_BITS (7 | 1u << 31)
#define MAX_HINTS 1024

struct mrc_qp_hint {
    struct mrc_qp_hint_attr attr;
    uint32_t users;
};

/* The data that a queue pair of this API has in addition to a queue pair of verbs. */
struct extra {
    struct mrc_qp_attr attr;
    struct mrc_qp_init_attr init;
};

static struct ibv_cq *verbs_cq(struct mrc_cq *cq) { return (struct ibv_cq *)cq; }
static struct ibv_qp *verbs_qp(struct mrc_qp *qp) { return (struct ibv_qp *)qp; }
static struct extra *extra_of(struct mrc_qp *qp) { return qp_of(verbs_qp(qp))->extra; }

EXPORT int mrc_query_device(struct ibv_context *verbs, struct mrc_device_attr *attr, int *supported)
{
    const struct session *session = &context_of(verbs)->session;

    if (supported)
        *supported = 1;
    memset(attr, 0, sizeof(*attr));
    attr->protocol_versions = 1 << 0;
    attr->max_wimm = attr->max_wimm_dest = (uint16_t)session->max_wimm;
    attr->max_mpr = (uint8_t)(session->max_mpr / RESOLUTION);
    attr->mpr_resolution = RESOLUTION;
    attr->max_qp_hint = MAX_HINTS;
    attr->capabilities = TRIM_NACK;
    return 0;
}

EXPORT int mrc_query_device_ex(struct ibv_context *verbs, struct mrc_context *context, struct mrc_device_attr *attr,
                               int *supported)
{
    (void)context;
    return mrc_query_device(verbs, attr, supported);
}

EXPORT void mrc_query_version(uint32_t *current, uint32_t *oldest, uint32_t *vendor, uint32_t *oldest_vendor)
{
    uint32_t unused;

    *(current ? current : &unused) = MRC_API_VERSION;
    *(oldest ? oldest : &unused) = 0;
    *(vendor ? vendor : &unused) = MRC_VENDOR_VERSION;
    *(oldest_vendor ? oldest_vendor : &unused) = MRC_VENDOR_VERSION;
}

/* Accept any version of the API, because some programs pass the version of the protocol. */
EXPORT struct mrc_context *mrc_create_context(struct ibv_context *verbs, struct mrc_context_attr *attr)
{
    struct mrc_context *context = calloc(1, sizeof(*context));

    (void)attr;
    if (context)
        context->verbs = verbs;
    return context;
}

EXPORT int mrc_destroy_context(struct mrc_context *context)
{
    free(context);
    return 0;
}

EXPORT int mrc_create_comp_channel(struct mrc_context *context, struct mrc_comp_channel **channel)
{
    *channel = (struct mrc_comp_channel *)ibv_create_comp_channel(context->verbs);
    return *channel ? 0 : errno;
}

EXPORT int mrc_get_comp_channel_fd(struct mrc_comp_channel *channel, int *fd)
{
    *fd = ((struct ibv_comp_channel *)channel)->fd;
    return 0;
}

EXPORT int mrc_destroy_comp_channel(struct mrc_comp_channel *channel)
{
    return ibv_destroy_comp_channel((struct ibv_comp_channel *)channel);
}

EXPORT struct mrc_cq *mrc_create_cq(struct mrc_context *context, int cqe, void *user, struct mrc_comp_channel *channel,
                                    int vector)
{
    return (struct mrc_cq *)ibv_create_cq(context->verbs, cqe, user, (struct ibv_comp_channel *)channel, vector);
}

EXPORT int mrc_poll_cq(struct mrc_cq *cq, int count, struct ibv_wc *wc) { return ibv_poll_cq(verbs_cq(cq), count, wc); }
EXPORT int mrc_destroy_cq(struct mrc_cq *cq) { return ibv_destroy_cq(verbs_cq(cq)); }

EXPORT struct mrc_qp_hint *mrc_create_qp_hint(struct mrc_context *context, struct mrc_qp_hint_attr *attr)
{
    struct mrc_qp_hint *hint = calloc(1, sizeof(*hint));

    (void)context;
    if (hint && attr)
        hint->attr = *attr;
    return hint;
}

EXPORT int mrc_destroy_qp_hint(struct mrc_qp_hint *hint)
{
    if (!hint)
        return minus(EINVAL);
    if (__atomic_load_n(&hint->users, __ATOMIC_SEQ_CST))
        return minus(EBUSY);
    free(hint);
    return 0;
}

static int copy_hint(struct mrc_qp_hint_attr *to, const struct mrc_qp_hint_attr *from, int mask)
{
    if ((unsigned)mask & ~HINT_BITS)
        return minus(EINVAL);
    if (mask & 1)
        to->qps_per_peer = from->qps_per_peer;
    if (mask & 2)
        to->send_peers = from->send_peers;
    if (mask & 4)
        to->remote_receivers = from->remote_receivers;
    if ((unsigned)mask & 1u << 31)
        memcpy(to->vendor, from->vendor, sizeof(to->vendor));
    return 0;
}

EXPORT int mrc_query_qp_hint(struct mrc_qp_hint *hint, struct mrc_qp_hint_attr *attr, int mask)
{
    return hint && attr ? copy_hint(attr, &hint->attr, mask) : minus(EINVAL);
}

EXPORT int mrc_modify_qp_hint(struct mrc_qp_hint *hint, struct mrc_qp_hint_attr *attr, int mask)
{
    return hint && attr ? copy_hint(&hint->attr, attr, mask) : minus(EINVAL);
}

EXPORT struct mrc_qp *mrc_create_qp(struct mrc_context *context, struct mrc_qp_init_attr *init)
{
    struct ibv_qp_init_attr attr = {.qp_context = init->user,
                                    .send_cq = verbs_cq(init->send_cq),
                                    .recv_cq = verbs_cq(init->recv_cq),
                                    .cap = init->cap,
                                    .qp_type = IBV_QPT_RC,
                                    .sq_sig_all = init->sq_sig_all};
    struct extra *extra = calloc(1, sizeof(*extra));

    if (!extra)
        return NULL;
    if (!init->pd || init->pd->context != context->verbs || init->send_ops & ~(uint64_t)SEND_OPS || init->protocol > 1) {
        free(extra);
        errno = EINVAL;
        return NULL;
    }
    struct ibv_qp *qp = ibv_create_qp(init->pd, &attr);
    if (!qp) {
        free(extra);
        return NULL;
    }
    init->cap = attr.cap;
    extra->init = *init;
    const struct session *session = &context_of(context->verbs)->session;
    extra->attr.timeout = session->timeout;
    extra->attr.linear_retry = session->linear_retry;
    extra->attr.exponential_retry = session->exponential_retry;
    extra->attr.mpr = extra->attr.mpr_dest = (uint8_t)(session->max_mpr / RESOLUTION);
    extra->attr.max_wimm = extra->attr.max_wimm_dest = (uint16_t)session->max_wimm;
    qp_of(qp)->extra = extra;
    return (struct mrc_qp *)qp;
}

static void leave_hint(struct extra *extra)
{
    if (extra->attr.hint)
        __atomic_sub_fetch(&extra->attr.hint->users, 1, __ATOMIC_SEQ_CST);
    extra->attr.hint = NULL;
}

EXPORT int mrc_destroy_qp(struct mrc_qp *qp)
{
    struct extra *extra = extra_of(qp);
    int error = ibv_destroy_qp(verbs_qp(qp));

    if (!error) {
        leave_hint(extra);
        free(extra);
    }
    return error;
}

EXPORT int mrc_query_qp(struct mrc_qp *qp, struct ibv_qp_attr *attr, int mask, struct mrc_qp_attr *more, int more_mask,
                        struct mrc_qp_init_attr *init)
{
    (void)more_mask;
    if (more)
        *more = extra_of(qp)->attr;
    if (init)
        *init = extra_of(qp)->init;
    return ibv_query_qp(verbs_qp(qp), attr, mask, NULL);
}

/* Return an error for attributes that are invalid or above the device's limits. */
static int check(const struct session *session, const struct mrc_qp_attr *attr, unsigned mask)
{
    const unsigned known = 0x3FF | (unsigned)MRC_VENDOR;
    const unsigned most_mpr = session->max_mpr / RESOLUTION;

    if (mask & ~known)
        return EINVAL;
    if ((mask & MRC_MPR && (!attr->mpr || attr->mpr > most_mpr)) ||
        (mask & MRC_MPR_DEST && (!attr->mpr_dest || attr->mpr_dest > most_mpr)) ||
        (mask & MRC_MAX_WIMM && attr->max_wimm > session->max_wimm) ||
        (mask & MRC_MAX_WIMM_DEST && attr->max_wimm_dest > session->max_wimm) ||
        (mask & MRC_TIMEOUT && attr->timeout > MAX_TIMEOUT) ||
        (mask & MRC_RETRY && (attr->linear_retry > MAX_LINEAR || attr->exponential_retry > MAX_EXPONENTIAL)))
        return EINVAL;
    return 0;
}

static void keep(struct extra *extra, const struct mrc_qp_attr *from, unsigned mask)
{
    struct mrc_qp_attr *to = &extra->attr;

    if (mask & MRC_MPR)
        to->mpr = from->mpr;
    if (mask & MRC_MPR_DEST)
        to->mpr_dest = from->mpr_dest;
    if (mask & MRC_MAX_WIMM)
        to->max_wimm = from->max_wimm;
    if (mask & MRC_MAX_WIMM_DEST)
        to->max_wimm_dest = from->max_wimm_dest;
    if (mask & MRC_TIMEOUT)
        to->timeout = from->timeout;
    if (mask & MRC_RETRY) {
        to->linear_retry = from->linear_retry;
        to->exponential_retry = from->exponential_retry;
    }
    if (mask & MRC_EV_PROFILE)
        to->ev_profile = from->ev_profile;
    if (mask & MRC_CC_PROFILE)
        to->cc_profile = from->cc_profile;
    if (mask & MRC_CAPABILITIES)
        to->capabilities = from->capabilities;
    if (mask & (unsigned)MRC_VENDOR)
        memcpy(to->vendor, from->vendor, sizeof(to->vendor));
    if (mask & MRC_HINT) {
        leave_hint(extra);
        to->hint = from->hint;
        if (to->hint)
            __atomic_add_fetch(&to->hint->users, 1, __ATOMIC_SEQ_CST);
    }
}

/* Pass the limits for a sender to the service. */
static int limit(struct ibv_qp *qp, const struct mrc_qp_attr *attr, unsigned mask)
{
    const uint64_t args[] = {qp->qp_num,
                             mask & MRC_MPR ? (uint64_t)attr->mpr * RESOLUTION : 0,
                             mask & MRC_MAX_WIMM ? attr->max_wimm : 0,
                             attr->timeout,
                             attr->linear_retry,
                             attr->exponential_retry,
                             !!(mask & (MRC_TIMEOUT | MRC_RETRY))};

    return mrclab_call(qp, WIRE_OP_LIMIT_QP, args, 7);
}

static int choose_profiles(struct ibv_qp *qp, const struct mrc_qp_attr *now, const struct mrc_qp_attr *more,
                           unsigned mask)
{
    const uint64_t args[] = {qp->qp_num, (mask & MRC_EV_PROFILE ? more : now)->ev_profile,
                             (mask & MRC_CC_PROFILE ? more : now)->cc_profile};

    return mrclab_call(qp, WIRE_OP_PROFILE_QP, args, 3);
}

EXPORT int mrc_modify_qp(struct mrc_qp *qp, struct ibv_qp_attr *attr, int mask, struct mrc_qp_attr *more, int more_mask)
{
    struct ibv_qp *verbs = verbs_qp(qp);
    unsigned bits = more ? (unsigned)more_mask : 0;
    int error = more ? check(&context_of(verbs->context)->session, more, bits) : 0;

    if (!error && bits & (MRC_EV_PROFILE | MRC_CC_PROFILE))
        error = choose_profiles(verbs, &extra_of(qp)->attr, more, bits);
    if (!error && attr)
        error = ibv_modify_qp(verbs, attr, mask);
    if (!error && more) {
        keep(extra_of(qp), more, bits);
        if (bits & (MRC_MPR | MRC_MAX_WIMM | MRC_TIMEOUT | MRC_RETRY))
            error = limit(verbs, &extra_of(qp)->attr, bits);
    }
    return error;
}

EXPORT int mrc_get_qpn(struct mrc_qp *qp, uint32_t *qpn)
{
    *qpn = verbs_qp(qp)->qp_num;
    return 0;
}

EXPORT int mrc_post_recv(struct mrc_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    return ibv_post_recv(verbs_qp(qp), wr, bad);
}

EXPORT int mrc_post_send(struct mrc_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    return ibv_post_send(verbs_qp(qp), wr, bad);
}

EXPORT int mrc_get_async_event(struct mrc_context *context, struct mrc_async_event *event)
{
    struct ibv_async_event verbs;

    if (ibv_get_async_event(context->verbs, &verbs))
        return errno ? errno : EIO;
    memset(event, 0, sizeof(*event));
    memcpy(&event->element, &verbs.element, sizeof(event->element));
    event->type = verbs.event_type;
    return 0;
}

EXPORT void mrc_ack_async_event(struct mrc_async_event *event)
{
    struct ibv_async_event verbs = {.event_type = event->type};

    memcpy(&verbs.element, &event->element, sizeof(event->element));
    ibv_ack_async_event(&verbs);
}

EXPORT int mrc_req_notify_cq(struct mrc_cq *cq, int solicited_only)
{
    return ibv_req_notify_cq(verbs_cq(cq), solicited_only);
}

EXPORT int mrc_get_cq_event(struct mrc_comp_channel *channel, struct mrc_cq **cq, void **user)
{
    struct ibv_cq *found;

    if (ibv_get_cq_event((struct ibv_comp_channel *)channel, &found, user))
        return -1;
    *cq = (struct mrc_cq *)found;
    return 0;
}

EXPORT void mrc_ack_cq_events(struct mrc_cq *cq, unsigned count) { ibv_ack_cq_events(verbs_cq(cq), count); }
