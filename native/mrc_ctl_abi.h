/* The ABI of OCP's MRC control API 1.0.1, as in lib_mrc.so. Declarations were written from sizes and offsets. */
#pragma once
#include "mrc_abi.h"

#define MRC_CTL_EV_BYTES 32

enum mrc_ctl_state { MRC_CTL_INIT, MRC_CTL_OFFLINE, MRC_CTL_ONLINE };
enum mrc_ctl_fmt_mode { MRC_CTL_FMT_STEV = 1, MRC_CTL_FMT_SRV6 = 2, MRC_CTL_FMT_UDP = 4 };
enum mrc_ctl_fields_op { MRC_CTL_FIELDS_MODIFY, MRC_CTL_FIELDS_QUERY };
enum mrc_ctl_ev_mode { MRC_CTL_EV_AUTO = 1, MRC_CTL_EV_EXPLICIT = 2, MRC_CTL_EV_GENERATED = 4 };
enum mrc_ctl_ev_op { MRC_CTL_EV_REPLACE, MRC_CTL_EV_MODIFY_STATE, MRC_CTL_EV_QUERY_STATE, MRC_CTL_EV_QUERY_ARRAY };
enum mrc_ctl_ev_state { MRC_CTL_EV_GOOD = 1, MRC_CTL_EV_ASSUMED_BAD = 2, MRC_CTL_EV_DENIED = 4 };
enum mrc_ctl_ep_op { MRC_CTL_EP_PROBE, MRC_CTL_EP_PORT_STATUS };
#define MRC_CTL_EV_ALL_COPIES 1u

/* The masks of attributes. In every mask, bit 31 means vendor data. */
enum { MRC_CTL_PORT_ADMIN = 1 << 0 };
enum { MRC_CTL_FMT_STATE = 1 << 0, MRC_CTL_FMT_CURRENT = 1 << 1, MRC_CTL_FMT_MODE = 1 << 2, MRC_CTL_FMT_OP = 1 << 3 };
enum {
    MRC_CTL_EVP_STATE = 1 << 0,
    MRC_CTL_EVP_CURRENT = 1 << 1,
    MRC_CTL_EVP_MODE = 1 << 2,
    MRC_CTL_EVP_FMT = 1 << 3,
    MRC_CTL_EVP_COUNT = 1 << 4,
    MRC_CTL_EVP_MIN_ACTIVE = 1 << 5,
    MRC_CTL_EVP_EVENTS = 1 << 6,
    MRC_CTL_EVP_EV_OP = 1 << 7,
    MRC_CTL_EVP_FIELDS_OP = 1 << 8,
};
enum { MRC_CTL_CC_STATE = 1 << 0, MRC_CTL_CC_CURRENT = 1 << 1, MRC_CTL_CC_ALGORITHM = 1 << 2, MRC_CTL_CC_CONFIG = 1 << 3 };

struct mrc_ctl_device_attr {
    uint32_t protocol_versions;
    struct {
        uint32_t max_fmt_profiles, max_profiles, max_evs, free_evs, max_per_profile;
        uint32_t alignment, max_width, fmt_modes, modes, max_op_entries;
    } ev;
    struct {
        uint32_t max_profiles;
        const char **algorithms;
    } cc;
    uint32_t port_mask;
    uint32_t options;
};

struct mrc_ctl_port_attr {
    int admin; /* 0 disabled, 1 enabled */
};

struct mrc_ctl_ev_fmt_field {
    uint8_t width;
};

struct mrc_ctl_ev_fmt_profile_attr {
    int new_state, current_state, mode;
    struct {
        int op;
        struct mrc_ctl_ev_fmt_field *fields;
        int count;
    } op __attribute__((aligned(8)));
    uint8_t vendor[MRC_VENDOR_BYTES];
};

struct mrc_ctl_ev {
    uint8_t bytes[MRC_CTL_EV_BYTES];
    uint8_t port; /* from 1 */
};

struct mrc_ctl_ev_field {
    uint32_t width, init, min, max, mask;
};

struct mrc_ctl_ev_op_entry {
    struct mrc_ctl_ev ev, ev_new;
    uint32_t state, flags;
};

struct mrc_ctl_ev_profile_attr {
    int new_state, current_state, mode;
    uint64_t fmt_id;
    uint32_t count, min_active;
    int events;
    struct {
        int op;
        struct mrc_ctl_ev_op_entry *entries;
        int count;
    } ev_op;
    struct {
        int op;
        struct mrc_ctl_ev_field *fields;
        int count;
    } fields_op;
    uint8_t vendor[MRC_VENDOR_BYTES];
};

struct mrc_ctl_cc_profile_attr {
    int new_state, current_state;
    const char *algorithm;
    void *config;
    uint8_t vendor[MRC_VENDOR_BYTES];
};

struct mrc_ctl_cc_nscc_cfg {
    uint8_t disable_qa;
    uint32_t adjust_bytes_threshold, adjust_period_threshold, base_rtt;
    float eta, fi, fi_scale, gamma, max_md_jump;
    uint32_t max_cwnd;
    uint8_t qa_gate;
    uint32_t qa_threshold, target_delay;
};

struct mrc_ctl_ev_event {
    uint64_t profile;
    struct mrc_ctl_ev ev;
    uint32_t drops;
    int state;
};

struct mrc_ctl_ep_req {
    uint16_t id;
    union ibv_gid sgid, dgid;
    int mode;
    struct mrc_ctl_ev ev;
    uint32_t port_status;
};

struct mrc_ctl_ep_rsp {
    uint16_t id;
    uint8_t port;
    uint32_t rtt_ns;
    uint8_t adjusted;
};

int mrc_ctl_query_device_ex(struct ibv_context *, struct mrc_context *, struct mrc_ctl_device_attr *, int *supported);
int mrc_ctl_query_device(struct ibv_context *, struct mrc_ctl_device_attr *);
void mrc_ctl_query_version(uint32_t *current, uint32_t *oldest, uint32_t *vendor, uint32_t *oldest_vendor);
int mrc_ctl_query_port(struct mrc_context *, uint8_t port, struct mrc_ctl_port_attr *, int mask);
int mrc_ctl_modify_port(struct mrc_context *, uint8_t port, struct mrc_ctl_port_attr *, int mask);
int mrc_ctl_modify_ev_fmt_profile(struct mrc_context *, uint64_t id, struct mrc_ctl_ev_fmt_profile_attr *, int mask);
int mrc_ctl_query_ev_fmt_profile(struct mrc_context *, uint64_t id, struct mrc_ctl_ev_fmt_profile_attr *, int mask);
int mrc_ctl_modify_ev_profile(struct mrc_context *, uint64_t id, struct mrc_ctl_ev_profile_attr *, int mask);
int mrc_ctl_query_ev_profile(struct mrc_context *, uint64_t id, struct mrc_ctl_ev_profile_attr *, int mask);
int mrc_ctl_modify_cc_profile(struct mrc_context *, uint64_t id, struct mrc_ctl_cc_profile_attr *, int mask);
int mrc_ctl_query_cc_profile(struct mrc_context *, uint64_t id, struct mrc_ctl_cc_profile_attr *, int mask);
struct mrc_cq *mrc_ctl_create_ev_event_cq(struct mrc_context *, int cqe, void *user, struct mrc_comp_channel *,
                                          int vector);
int mrc_ctl_poll_ev_event(struct mrc_cq *, int count, struct mrc_ctl_ev_event *);
int mrc_ctl_ep_batch_send_wait(struct mrc_context *, uint8_t dscp, int op, struct mrc_ctl_ep_req *, int count,
                               uint32_t timeout_ns, struct mrc_ctl_ep_rsp *, int *got);
