/* The ABI of OCP's MRC API 1.0.1, as in lib_mrc.so. These declarations were written from sizes and offsets. */
#pragma once
#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

#define MRC_VENDOR_BYTES 128
#define MRC_API_VERSION (1u << 24 | 0u << 16 | 1u)
#define MRC_VENDOR_VERSION (1u << 24)

struct mrc_context;
struct mrc_cq;
struct mrc_qp;
struct mrc_qp_hint;
struct mrc_comp_channel;

struct mrc_context_attr {
    uint32_t api_version;
    uint32_t vendor_version;
};

struct mrc_device_attr {
    uint32_t protocol_versions;
    uint16_t max_wimm;
    uint16_t max_wimm_dest;
    uint8_t max_mpr;
    uint8_t mpr_resolution;
    uint16_t reserved;
    uint32_t max_qp_hint;
    uint32_t capabilities;
};

struct mrc_qp_hint_attr {
    int qps_per_peer;
    int send_peers;
    int remote_receivers;
    uint8_t vendor[MRC_VENDOR_BYTES];
};

struct mrc_qp_init_attr {
    void *user;
    struct mrc_cq *send_cq;
    struct mrc_cq *recv_cq;
    struct ibv_qp_cap cap;
    int sq_sig_all;
    struct ibv_pd *pd;
    uint64_t send_ops;
    uint32_t protocol;
};

struct mrc_qp_attr {
    uint8_t mpr;
    uint8_t mpr_dest;
    uint16_t max_wimm;
    uint16_t max_wimm_dest;
    uint8_t timeout;
    uint64_t ev_profile;
    uint64_t cc_profile;
    uint8_t linear_retry;
    uint8_t exponential_retry;
    struct mrc_qp_hint *hint;
    uint32_t capabilities;
    uint8_t vendor[MRC_VENDOR_BYTES];
};

enum mrc_qp_attr_bit {
    MRC_MAX_WIMM = 1 << 0,
    MRC_MAX_WIMM_DEST = 1 << 1,
    MRC_MPR = 1 << 2,
    MRC_MPR_DEST = 1 << 3,
    MRC_TIMEOUT = 1 << 4,
    MRC_EV_PROFILE = 1 << 5,
    MRC_CC_PROFILE = 1 << 6,
    MRC_HINT = 1 << 7,
    MRC_RETRY = 1 << 8,
    MRC_CAPABILITIES = 1 << 9,
    MRC_VENDOR = INT32_MIN, /* bit 31 */
};

struct mrc_async_event {
    union {
        struct mrc_cq *cq;
        struct mrc_qp *qp;
        int port;
    } element;
    uint32_t type;
};

_Static_assert(sizeof(struct mrc_context_attr) == 8, "mrc_context_attr");
_Static_assert(sizeof(struct mrc_device_attr) == 20, "mrc_device_attr");
_Static_assert(offsetof(struct mrc_device_attr, max_qp_hint) == 12, "max_qp_hint");
_Static_assert(sizeof(struct mrc_qp_hint_attr) == 140, "mrc_qp_hint_attr");
_Static_assert(sizeof(struct mrc_qp_init_attr) == 72, "mrc_qp_init_attr");
_Static_assert(offsetof(struct mrc_qp_init_attr, pd) == 48 && offsetof(struct mrc_qp_init_attr, protocol) == 64, "pd");
_Static_assert(sizeof(struct mrc_qp_attr) == 176, "mrc_qp_attr");
_Static_assert(offsetof(struct mrc_qp_attr, ev_profile) == 8 && offsetof(struct mrc_qp_attr, linear_retry) == 24, "ev");
_Static_assert(offsetof(struct mrc_qp_attr, hint) == 32 && offsetof(struct mrc_qp_attr, vendor) == 44, "hint");
_Static_assert(sizeof(struct mrc_async_event) == 16, "mrc_async_event");

int mrc_query_device_ex(struct ibv_context *, struct mrc_context *, struct mrc_device_attr *, int *supported);
int mrc_query_device(struct ibv_context *, struct mrc_device_attr *, int *supported);
void mrc_query_version(uint32_t *current, uint32_t *oldest, uint32_t *vendor, uint32_t *oldest_vendor);
struct mrc_context *mrc_create_context(struct ibv_context *, struct mrc_context_attr *);
int mrc_destroy_context(struct mrc_context *);
int mrc_create_comp_channel(struct mrc_context *, struct mrc_comp_channel **);
int mrc_get_comp_channel_fd(struct mrc_comp_channel *, int *fd);
int mrc_destroy_comp_channel(struct mrc_comp_channel *);
struct mrc_cq *mrc_create_cq(struct mrc_context *, int cqe, void *user, struct mrc_comp_channel *, int vector);
int mrc_poll_cq(struct mrc_cq *, int count, struct ibv_wc *);
int mrc_destroy_cq(struct mrc_cq *);
struct mrc_qp_hint *mrc_create_qp_hint(struct mrc_context *, struct mrc_qp_hint_attr *);
int mrc_destroy_qp_hint(struct mrc_qp_hint *);
int mrc_query_qp_hint(struct mrc_qp_hint *, struct mrc_qp_hint_attr *, int mask);
int mrc_modify_qp_hint(struct mrc_qp_hint *, struct mrc_qp_hint_attr *, int mask);
struct mrc_qp *mrc_create_qp(struct mrc_context *, struct mrc_qp_init_attr *);
int mrc_destroy_qp(struct mrc_qp *);
int mrc_query_qp(struct mrc_qp *, struct ibv_qp_attr *, int, struct mrc_qp_attr *, int, struct mrc_qp_init_attr *);
int mrc_modify_qp(struct mrc_qp *, struct ibv_qp_attr *, int, struct mrc_qp_attr *, int);
int mrc_get_qpn(struct mrc_qp *, uint32_t *);
int mrc_post_recv(struct mrc_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **bad);
int mrc_post_send(struct mrc_qp *, struct ibv_send_wr *, struct ibv_send_wr **bad);
int mrc_get_async_event(struct mrc_context *, struct mrc_async_event *);
void mrc_ack_async_event(struct mrc_async_event *);
int mrc_req_notify_cq(struct mrc_cq *, int solicited_only);
int mrc_get_cq_event(struct mrc_comp_channel *, struct mrc_cq **, void **user);
void mrc_ack_cq_events(struct mrc_cq *, unsigned count);
