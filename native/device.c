/* Devices, contexts, and queries of their attributes. There is one device, mrc0, with one port. */
#define _GNU_SOURCE
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef ibv_query_port

static struct device mrc0;

EXPORT struct ibv_device **ibv_get_device_list(int *count)
{
    struct ibv_device **list = calloc(2, sizeof(*list));
    struct device *device = &mrc0;
    struct session session;

    if (count)
        *count = 0;
    if (!list)
        return NULL;
    int error = session_open(&session);
    if (error) {
        fprintf(stderr, "mrclab: no NIC service: %s (run the program with 'mrclab exec')\n", strerror(error));
        return list;
    }
    device->guid = session.guid;
    session_close(&session);
    device->ibv.node_type = IBV_NODE_CA;
    device->ibv.transport_type = IBV_TRANSPORT_IB;
    strcpy(device->ibv.name, "mrc0");
    strcpy(device->ibv.dev_name, "uverbs0");
    strcpy(device->ibv.dev_path, "/sys/class/infiniband_verbs/uverbs0");
    strcpy(device->ibv.ibdev_path, "/sys/class/infiniband/mrc0");
    list[0] = &device->ibv;
    if (count)
        *count = 1;
    return list;
}

EXPORT void ibv_free_device_list(struct ibv_device **list) { free(list); }

EXPORT const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }

EXPORT __be64 ibv_get_device_guid(struct ibv_device *device) { return ((struct device *)device)->guid; }

EXPORT int ibv_get_device_index(struct ibv_device *device)
{
    (void)device;
    return 0;
}

EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    struct context *context = calloc(1, sizeof(*context));

    if (!context)
        return NULL;
    int error = session_open(&context->session);
    if (error) {
        free(context);
        errno = error;
        return NULL;
    }
    struct ibv_context *verbs = &context->verbs.context;
    pthread_mutex_init(&context->lock, NULL);
    pthread_cond_init(&context->acknowledged, NULL);
    pthread_mutex_init(&verbs->mutex, NULL);
    context->verbs.sz = sizeof(context->verbs);
    context->verbs.query_port = query_port;
    context->verbs.create_qp_ex = create_qp_ex;
    refuse_rest(&context->verbs);
    verbs->abi_compat = (void *)UINTPTR_MAX; /* means: this ibv_context is part of a verbs_context */
    verbs->device = device;
    verbs->cmd_fd = context->session.socket;
    verbs->async_fd = context->session.events;
    verbs->num_comp_vectors = 1;
    verbs->ops.poll_cq = poll_cq;
    verbs->ops.req_notify_cq = req_notify_cq;
    verbs->ops.post_send = post_send;
    verbs->ops.post_recv = post_recv;
    return verbs;
}

EXPORT int ibv_close_device(struct ibv_context *verbs)
{
    struct context *context = context_of(verbs);

    session_close(&context->session);
    pthread_mutex_destroy(&context->lock);
    pthread_mutex_destroy(&verbs->mutex);
    free(context);
    return 0;
}

EXPORT int ibv_query_device(struct ibv_context *verbs, struct ibv_device_attr *attr)
{
    struct context *context = context_of(verbs);

    memset(attr, 0, sizeof(*attr));
    strcpy(attr->fw_ver, "1.0.1");
    attr->node_guid = attr->sys_image_guid = context->session.guid;
    attr->max_mr_size = UINT64_MAX >> 1;
    attr->page_size_cap = 4096;
    attr->max_qp = WIRE_MAX_QP;
    attr->max_qp_wr = WIRE_MAX_SEND_WR;
    attr->max_sge = WIRE_MAX_SGE;
    attr->max_cq = WIRE_MAX_CQ;
    attr->max_cqe = WIRE_MAX_CQE;
    attr->max_mr = WIRE_MAX_MR;
    attr->max_pd = 1 << 16;
    attr->max_pkeys = 1;
    attr->phys_port_cnt = 1;
    return 0;
}

int query_port(struct ibv_context *verbs, uint8_t port, struct ibv_port_attr *attr, size_t bytes)
{
    struct context *context = context_of(verbs);
    struct ibv_port_attr full = {0};
    struct wire_reply reply;

    if (port != 1)
        return EINVAL;
    int error = session_call(&context->session, WIRE_OP_QUERY_PORT, NULL, 0, NULL, &reply, NULL, 0);
    if (error)
        return error;
    full.state = reply.v0 ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    full.phys_state = reply.v0 ? 5 : 3; /* LinkUp, Disabled */
    full.max_mtu = full.active_mtu = context->session.mtu;
    full.gid_tbl_len = WIRE_GIDS;
    full.port_cap_flags = IBV_PORT_IP_BASED_GIDS;
    full.max_msg_sz = WIRE_MAX_MESSAGE;
    full.pkey_tbl_len = 1;
    full.active_width = 1; /* 1X */
    full.active_speed = 1; /* SDR */
    full.link_layer = IBV_LINK_LAYER_ETHERNET;
    memset(attr, 0, bytes);
    memcpy(attr, &full, bytes < sizeof(full) ? bytes : sizeof(full));
    return 0;
}

/* A program that calls this function by its name has room for the first 48 bytes of the structure only. */
EXPORT int ibv_query_port(struct ibv_context *verbs, uint8_t port, struct _compat_ibv_port_attr *attr)
{
    return query_port(verbs, port, (struct ibv_port_attr *)attr, offsetof(struct ibv_port_attr, port_cap_flags2));
}

EXPORT int ibv_query_gid(struct ibv_context *verbs, uint8_t port, int index, union ibv_gid *gid)
{
    if (port != 1 || index < 0 || index >= (int)WIRE_GIDS) {
        errno = EINVAL;
        return -1;
    }
    *gid = context_of(verbs)->session.gids[index];
    return 0;
}

static uint32_t gid_type(uint32_t index)
{
    return index % 2 ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1;
}

EXPORT int _ibv_query_gid_ex(struct ibv_context *verbs, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
                             uint32_t flags, size_t bytes)
{
    struct ibv_gid_entry full = {.gid_index = index, .port_num = 1, .gid_type = gid_type(index)};

    if (port != 1 || index >= WIRE_GIDS || flags)
        return EINVAL;
    full.gid = context_of(verbs)->session.gids[index];
    memset(entry, 0, bytes);
    memcpy(entry, &full, bytes < sizeof(full) ? bytes : sizeof(full));
    return 0;
}

EXPORT ssize_t _ibv_query_gid_table(struct ibv_context *verbs, struct ibv_gid_entry *entries, size_t most,
                                    uint32_t flags, size_t bytes)
{
    size_t count = most < WIRE_GIDS ? most : WIRE_GIDS;

    for (size_t i = 0; i < count; i++)
        if (_ibv_query_gid_ex(verbs, 1, (uint32_t)i, (void *)((uint8_t *)entries + i * bytes), flags, bytes))
            return -EINVAL;
    return (ssize_t)count;
}

/* A private function of libibverbs, for the tools of libibverbs. Its types of GIDs are numbered from 0. */
EXPORT int ibv_query_gid_type(struct ibv_context *verbs, uint8_t port, unsigned index, unsigned *type);
int ibv_query_gid_type(struct ibv_context *verbs, uint8_t port, unsigned index, unsigned *type)
{
    (void)verbs;
    if (port != 1 || index >= WIRE_GIDS) {
        errno = EINVAL;
        return -1;
    }
    *type = gid_type(index) == IBV_GID_TYPE_ROCE_V2;
    return 0;
}

EXPORT int ibv_query_pkey(struct ibv_context *verbs, uint8_t port, int index, __be16 *pkey)
{
    (void)verbs;
    if (port != 1 || index) {
        errno = EINVAL;
        return -1;
    }
    *pkey = 0xFFFF;
    return 0;
}

EXPORT int ibv_get_pkey_index(struct ibv_context *verbs, uint8_t port, __be16 pkey)
{
    (void)verbs;
    return port == 1 && pkey == 0xFFFF ? 0 : -1;
}

EXPORT int ibv_fork_init(void) { return 0; } /* no memory is pinned */
EXPORT enum ibv_fork_status ibv_is_fork_initialized(void) { return IBV_FORK_UNNEEDED; }

static void note_event(struct context *context, struct ibv_async_event *event, uint32_t id)
{
    pthread_mutex_lock(&context->lock);
    if (event->event_type == IBV_EVENT_CQ_ERR) {
        for (uint32_t i = 0; i < WIRE_MAX_CQ; i++)
            if (context->cqs[i] && context->cqs[i]->id == id) {
                event->element.cq = &context->cqs[i]->ibv;
                context->cqs[i]->events++;
            }
    } else if (event->event_type >= IBV_EVENT_DEVICE_FATAL) {
        event->element.port_num = (int)id;
    } else {
        for (uint32_t i = 0; i < WIRE_MAX_QP; i++)
            if (context->qps[i] && context->qps[i]->ex.qp_base.qp_num == id) {
                event->element.qp = &context->qps[i]->ex.qp_base;
                context->qps[i]->events++;
            }
    }
    pthread_mutex_unlock(&context->lock);
}

EXPORT int ibv_get_async_event(struct ibv_context *verbs, struct ibv_async_event *event)
{
    struct context *context = context_of(verbs);
    struct wire_event wire;
    ssize_t got;

    for (;;) {
        got = read(verbs->async_fd, &wire, sizeof(wire));
        if (got < 0)
            return -1;
        memset(event, 0, sizeof(*event));
        if (got != (ssize_t)sizeof(wire)) { /* the service has ended */
            if (context->told_fatal) {
                errno = EIO;
                return -1;
            }
            context->told_fatal = true;
            event->event_type = IBV_EVENT_DEVICE_FATAL;
            return 0;
        }
        event->event_type = wire.type;
        note_event(context, event, wire.id);
        if (event->element.qp) /* a union: queue pair, queue or port. NULL: it was destroyed, so read the next event */
            return 0;
    }
}

EXPORT void ibv_ack_async_event(struct ibv_async_event *event)
{
    if (event->event_type == IBV_EVENT_CQ_ERR) {
        ibv_ack_cq_events(event->element.cq, 1);
    } else if (event->event_type <= IBV_EVENT_PATH_MIG_ERR) {
        struct qp *qp = qp_of(event->element.qp);
        struct context *context = qp->context;
        pthread_mutex_lock(&context->lock);
        qp->acknowledged++;
        pthread_cond_broadcast(&context->acknowledged);
        pthread_mutex_unlock(&context->lock);
    }
}
