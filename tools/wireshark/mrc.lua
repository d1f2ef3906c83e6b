-- Wireshark dissector for MRC (Multipath Reliable Connection) over SRv6 uSIDs.
--
--   tshark -X lua_script:tools/wireshark/mrc.lua -r run.pcap
--
-- There are two protocols: `mrc_usid` dissects the uSID container of an outer IPv6 destination, `mrc` everything
-- from the BTH to the ICRC. Layouts are those of hosts/mrc/wire.py (tables of the MRC specification, 1.0).
-- See docs/wireshark.md for how to load it and for filters. For Wireshark 4.0 (Lua 5.2) and newer.
--
-- Copyright mrclab contributors. SPDX-License-Identifier: Apache-2.0

set_plugin_info({
    version = "1.0",
    description = "MRC (Multipath Reliable Connection) and its SRv6 uSID containers",
})

-- Bit operations: Lua 5.3 has operators, Lua 5.2 a library, and Wireshark its own library.
local library = bit32 or bit
local bxor = library and library.bxor or load("return function(a, b) return a ~ b end")()
local band = library and library.band or load("return function(a, b) return a & b end")()
local rshift = library and library.rshift or load("return function(a, n) return a >> n end")()

local PSN_MODULUS = 2 ^ 24
local BTH_LEN, METH_LEN, TSETH_LEN, RETH_LEN, IMM_LEN, ICRC_LEN = 12, 4, 4, 16, 4, 4

local OPCODES = {
    [0xC6] = "WRITE_FIRST",
    [0xC7] = "WRITE_MIDDLE",
    [0xC8] = "WRITE_LAST",
    [0xC9] = "WRITE_LAST_IMM",
    [0xCA] = "WRITE_ONLY",
    [0xCB] = "WRITE_ONLY_IMM",
    [0xD1] = "ACKNOWLEDGE",
    [0xD8] = "ENDPOINT_REQUEST",
    [0xD9] = "ENDPOINT_RESPONSE",
    [0xDC] = "SACK",
    [0xDD] = "NACK",
    [0xDE] = "PROBE_REQUEST",
}
local HAS_IMMEDIATE = { [0xC9] = true, [0xCB] = true }
local MARKS = { [0] = "NONE", [1] = "SKIP_ONCE", [2] = "ALWAYS_SKIP" }
local REASONS = {
    [0x01] = "TRIMMED",
    [0x02] = "TRIMMED_LASTHOP",
    [0x06] = "NO_BITMAP",
    [0x07] = "NO_PKT_BUFFER",
    [0x0A] = "NO_RESOURCE",
    [0x0B] = "PSN_OOR_WINDOW",
    [0x19] = "UNEXP_EVENT",
}
local ENDPOINT_OPS = { [0] = "PORT_STATUS_UPDATE", [1] = "EV_PROBE" }
local CC_TYPES = { [0] = "CC_STATE", [2] = "NACK" }
local ROLES = { [1] = "T0", [2] = "T1", [3] = "NIC" }
local ECN_CE = 3

-- The uSID container

local usid = Proto("mrc_usid", "SRv6 uSID Container")
local mrc = Proto("mrc", "Multipath Reliable Connection")

local sid_fields = {
    block = ProtoField.string("mrc_usid.block", "Locator block"),
    left = ProtoField.uint8("mrc_usid.left", "uSIDs left", base.DEC),
    usid = ProtoField.uint16("mrc_usid.usid", "uSID", base.HEX),
    plane = ProtoField.uint16("mrc_usid.plane", "Plane", base.DEC, nil, 0xF000),
    role = ProtoField.uint16("mrc_usid.role", "Role", base.DEC, ROLES, 0x0C00),
    index = ProtoField.uint16("mrc_usid.index", "Index", base.DEC, nil, 0x03FF),
    untrimmed = ProtoField.uint16("mrc_usid.untrimmed_length", "Inner payload length before trimming", base.DEC),
}
usid.fields = sid_fields

usid.prefs.block = Pref.string(
    "Locator block",
    "fcbb:bb00",
    "First 32 bits of a fabric's uSIDs, as two groups of an IPv6 address; empty takes any for uSIDs"
)

local ipv6_dst = Field.new("ipv6.dst")
local ipv6_dscp = Field.new("ipv6.tclass.dscp")
local inner_ipv6 = DissectorTable.get("ip.proto"):get_dissector(41)

local function block_bytes(text)
    local high, low = text:match("^%s*(%x+):(%x*)")
    if high == nil then
        return nil
    end
    return tonumber(high, 16) * 65536 + (tonumber(low, 16) or 0)
end

local function add_container(address, root)
    local tree = root:add(usid, address)
    tree:add(sid_fields.block, address(0, 4), string.format("%x:%x::/32", address(0, 2):uint(), address(2, 2):uint()))
    local names = {}
    for offset = 4, 14, 2 do
        local range = address(offset, 2)
        local value = range:uint()
        if value == 0 then
            break -- zeros end a container [RFC 9800]
        end
        local item = tree:add(sid_fields.usid, range)
        item:add(sid_fields.plane, range)
        item:add(sid_fields.role, range)
        item:add(sid_fields.index, range)
        local role = ROLES[band(rshift(value, 10), 3)] or "?"
        local name = string.format("p%d %s %d", rshift(value, 12), role, band(value, 0x3FF))
        item:append_text(" (" .. name .. ")")
        names[#names + 1] = name
    end
    tree:add(sid_fields.left, #names):set_generated()
    tree:append_text(#names > 0 and ": " .. table.concat(names, " > ") or ": at its end")
end

-- Takes the first value of a field, which is the outer header's: switches write no other header.
local function is_trimmed_dscp(info)
    return info ~= nil and (info.value == mrc.prefs.trimmed or info.value == mrc.prefs.trimmed_lasthop)
end

-- The length fields of a trimmed packet may still include the payload that was cut off. Wireshark would call that
-- malformed, so it gets a copy with correct lengths. Returns nil if the lengths are right.
local function with_correct_lengths(tvb)
    local here = tvb:len() - 40
    if here < 8 or tvb(6, 1):uint() ~= 17 or tvb(4, 2):uint() <= here then
        return nil
    end
    local bytes = tvb:bytes()
    for _, at in ipairs({ 4, 44 }) do -- lengths of IPv6 and UDP
        bytes:set_index(at, rshift(here, 8))
        bytes:set_index(at + 1, band(here, 0xFF))
    end
    return bytes:tvb("Trimmed packet, lengths corrected")
end

-- Wireshark tries the lower of the two UDP ports first, and a small EV half in the source port may be a known
-- service. The dissector takes over such ports when they appear, and passes packets that are not MRC back.
local udp_ports = DissectorTable.get("udp.port")
local ours, shadowed = {}, {}

local function take_source_port(tvb)
    if tvb:len() < 44 or tvb(6, 1):uint() ~= 17 or not ours[tvb(42, 2):uint()] then
        return
    end
    local source = tvb(40, 2):uint()
    if source ~= 0 and shadowed[source] == nil and not ours[source] then
        local owner = udp_ports:get_dissector(source)
        if owner ~= nil then
            shadowed[source] = owner
            udp_ports:add(source, mrc)
        end
    end
end

function usid.dissector(tvb, pinfo, tree)
    take_source_port(tvb)
    local destinations = { ipv6_dst() }
    local outer = destinations[#destinations]
    if outer ~= nil and outer.len == 16 then
        local block = block_bytes(usid.prefs.block)
        if block == nil or outer.range(0, 4):uint() == block then
            add_container(outer.range, tree)
        end
    end
    local whole = is_trimmed_dscp(ipv6_dscp()) and with_correct_lengths(tvb)
    if whole then
        tree:add(sid_fields.untrimmed, tvb(4, 2))
        inner_ipv6:call(whole, pinfo, tree)
        return tvb:len()
    end
    return inner_ipv6:call(tvb, pinfo, tree)
end

DissectorTable.get("ip.proto"):add(41, usid)

-- MRC itself

local f = {
    -- Of the whole packet
    ev = ProtoField.uint32("mrc.ev", "Entropy value", base.HEX),
    ev_plane = ProtoField.uint16("mrc.ev.plane", "Plane of the EV", base.DEC),
    ev_uplink = ProtoField.uint16("mrc.ev.uplink", "Uplink of the EV", base.DEC),
    class = ProtoField.string("mrc.class", "Traffic class"),
    trimmed = ProtoField.bool("mrc.trimmed", "Trimmed"),
    ce = ProtoField.bool("mrc.ce", "Congestion experienced"),
    -- BTH
    bth = ProtoField.bytes("mrc.bth", "Base Transport Header"),
    opcode = ProtoField.uint8("mrc.bth.opcode", "Opcode", base.HEX, OPCODES),
    migration = ProtoField.bool("mrc.bth.m", "Migration state", 8, nil, 0x80),
    solicited = ProtoField.bool("mrc.bth.se", "Solicited event", 8, nil, 0x40),
    pad_count = ProtoField.uint8("mrc.bth.pad_count", "Pad count", base.DEC, nil, 0x30),
    version = ProtoField.uint8("mrc.bth.tver", "Transport version", base.DEC, nil, 0x0F),
    pkey = ProtoField.uint16("mrc.bth.pkey", "Partition key", base.HEX),
    bth_reserved = ProtoField.uint8("mrc.bth.reserved", "Reserved (not covered by the ICRC)", base.HEX),
    dest_qpn = ProtoField.uint24("mrc.bth.dest_qpn", "Destination QP", base.HEX),
    ack_request = ProtoField.bool("mrc.bth.a", "Ack requested", 8, nil, 0x80),
    retransmission = ProtoField.bool("mrc.bth.rtx", "Retransmission", 8, nil, 0x20),
    has_timestamp = ProtoField.bool("mrc.bth.ts", "TSETH follows", 8, nil, 0x10),
    psn = ProtoField.uint24("mrc.bth.psn", "PSN", base.DEC),
    request_id = ProtoField.uint16("mrc.request_id", "Request id", base.DEC),
    -- Data
    meth = ProtoField.bytes("mrc.meth", "Message Header (METH)"),
    rqmsn = ProtoField.uint16("mrc.meth.rqmsn", "RQMSN", base.DEC),
    msn = ProtoField.uint16("mrc.meth.msn", "MSN", base.DEC),
    tseth = ProtoField.bytes("mrc.tseth", "Timestamp Header (TSETH)"),
    tx_timestamp = ProtoField.uint16("mrc.tx_timestamp", "Transmit timestamp", base.DEC),
    tsr = ProtoField.uint16("mrc.tsr", "Timestamp resolution", base.DEC, { [0] = "128 ns", [1] = "implementation defined" }, 0x8000),
    ftype = ProtoField.uint16("mrc.ftype", "Format type", base.DEC, nil, 0x000F),
    reth = ProtoField.bytes("mrc.reth", "RDMA Header (RETH)"),
    va = ProtoField.uint64("mrc.reth.va", "Virtual address of this packet", base.HEX),
    rkey = ProtoField.uint32("mrc.reth.rkey", "Remote key", base.HEX),
    dma_length = ProtoField.uint32("mrc.reth.dma_length", "Length of the whole message", base.DEC),
    immediate = ProtoField.uint32("mrc.immediate", "Immediate data", base.HEX),
    payload = ProtoField.bytes("mrc.payload", "Payload"),
    payload_length = ProtoField.uint32("mrc.payload.length", "Payload length", base.DEC),
    pad = ProtoField.bytes("mrc.pad", "Pad"),
    icrc = ProtoField.uint32("mrc.icrc", "ICRC", base.HEX),
    icrc_status = ProtoField.string("mrc.icrc.status", "ICRC status"),
    -- ACKNOWLEDGE
    aeth = ProtoField.bytes("mrc.aeth", "ACK Header (AETH)"),
    syndrome = ProtoField.uint8("mrc.aeth.syndrome", "Syndrome", base.HEX),
    aeth_msn = ProtoField.uint24("mrc.aeth.msn", "MSN", base.DEC),
    -- Words that several control headers share
    type = ProtoField.uint16("mrc.type", "Type", base.DEC, nil, 0xF000),
    next = ProtoField.uint16("mrc.next", "Next header", base.DEC, nil, 0x0F80),
    spdcid = ProtoField.uint16("mrc.spdcid", "Source PDC id", base.DEC),
    dpdcid = ProtoField.uint16("mrc.dpdcid", "Destination PDC id", base.DEC),
    vendor = ProtoField.uint8("mrc.vendor", "Vendor", base.HEX),
    entropy = ProtoField.uint32("mrc.entropy", "Echoed entropy value", base.HEX),
    probe_id = ProtoField.uint16("mrc.probe_id", "Probe id", base.DEC),
    port_mask = ProtoField.uint32("mrc.port_status_mask", "Ports that are up", base.HEX),
    cc_type = ProtoField.uint8("mrc.cc_type", "Congestion control type", base.DEC, CC_TYPES, 0xF0),
    cc_flags = ProtoField.uint8("mrc.cc_flags", "Congestion control flags", base.HEX, nil, 0x0F),
    -- SACK
    seth = ProtoField.bytes("mrc.seth", "SACK Header (SETH)"),
    mark = ProtoField.uint16("mrc.sack.m", "EV mark", base.DEC, MARKS, 0x0060),
    probe_reply = ProtoField.bool("mrc.sack.pr", "Probe reply", 16, nil, 0x0002),
    ack_psn_offset = ProtoField.int16("mrc.sack.ack_psn_offset", "PSN that triggered, relative to cumulative", base.DEC),
    ack_psn = ProtoField.uint24("mrc.sack.ack_psn", "PSN that triggered", base.DEC),
    cack_psn = ProtoField.uint24("mrc.sack.cack_psn", "Cumulative PSN", base.DEC),
    mpr = ProtoField.uint8("mrc.sack.mpr", "Receive window in units of 128 PSNs", base.DEC),
    sack_offset = ProtoField.int16("mrc.sack.offset", "Start of the bitmap, relative to cumulative", base.DEC),
    bitmap = ProtoField.uint64("mrc.sack.bitmap", "Bitmap", base.HEX),
    range = ProtoField.string("mrc.sack.range", "Received"),
    missing = ProtoField.string("mrc.sack.missing", "Missing below the newest"),
    cc_state = ProtoField.bytes("mrc.cc_state", "Congestion Control State (CC_STATE)"),
    echoed_timestamp = ProtoField.uint16("mrc.cc_state.tx_timestamp", "Echoed timestamp", base.DEC),
    ooo_count = ProtoField.uint16("mrc.cc_state.ooo_count", "Packets out of order", base.DEC, nil, 0x7FFF),
    restore_cwnd = ProtoField.bool("mrc.cc_state.restore_cwnd", "Restore window", 8, nil, 0x80),
    cwnd_penalty = ProtoField.uint8("mrc.cc_state.rcv_cwnd_pen", "Receiver's window penalty", base.DEC, nil, 0x7F),
    rcvd_units = ProtoField.uint24("mrc.cc_state.rcvd_bytes", "Received, in units of 256 B", base.DEC),
    -- NACK
    neth = ProtoField.bytes("mrc.neth", "NACK Header (NETH)"),
    reason = ProtoField.uint8("mrc.nack.reason", "Reason", base.HEX, REASONS),
    nack_psn = ProtoField.uint24("mrc.nack.psn", "Refused PSN", base.DEC),
    -- Probes and endpoint operations
    peth = ProtoField.bytes("mrc.peth", "Probe Header (PETH)"),
    erth = ProtoField.bytes("mrc.erth", "Endpoint Request Header (ERTH)"),
    request_op = ProtoField.uint16("mrc.endpoint.request", "Operation", base.DEC, ENDPOINT_OPS, 0x0003),
    eeth = ProtoField.bytes("mrc.eeth", "Endpoint Response Header (EETH)"),
    response_op = ProtoField.uint16("mrc.endpoint.response", "Operation", base.DEC, ENDPOINT_OPS, 0x000C),
}
mrc.fields = f

local e = {
    retransmission = ProtoExpert.new("mrc.expert.rtx", "Retransmission", expert.group.SEQUENCE, expert.severity.NOTE),
    ce = ProtoExpert.new("mrc.expert.ce", "A switch marked congestion", expert.group.SEQUENCE, expert.severity.CHAT),
    mark = ProtoExpert.new("mrc.expert.mark", "The receiver asks to skip this EV", expert.group.SEQUENCE, expert.severity.CHAT),
    trimmed = ProtoExpert.new("mrc.expert.trimmed", "A switch cut the payload off", expert.group.SEQUENCE, expert.severity.NOTE),
    nack = ProtoExpert.new("mrc.expert.nack", "A packet was refused", expert.group.RESPONSE_CODE, expert.severity.WARN),
    fatal = ProtoExpert.new("mrc.expert.fatal", "Refused for good: the queue pair fails", expert.group.RESPONSE_CODE, expert.severity.ERROR),
    icrc = ProtoExpert.new("mrc.expert.icrc", "ICRC does not match", expert.group.CHECKSUM, expert.severity.ERROR),
    short = ProtoExpert.new("mrc.expert.short", "Packet ends inside a header", expert.group.MALFORMED, expert.severity.ERROR),
}
mrc.experts = { e.retransmission, e.ce, e.mark, e.trimmed, e.nack, e.fatal, e.icrc, e.short }

local EV_HALVES = { { 1, "Bits 15:0 (low)", 1 }, { 2, "Bits 31:16 (high)", 2 } }
local ICRC_CHOICES = { { 1, "Never", 1 }, { 2, "Control packets only", 2 }, { 3, "Every packet (slow)", 3 } }

mrc.prefs.ports = Pref.range("UDP ports", "4791,4971", "Destination ports of MRC; RoCEv2 uses 4791 too", 65535)
mrc.prefs.ev_half = Pref.enum("EV half in the UDP source port", 1, "The flow label carries the other", EV_HALVES, false)
mrc.prefs.icrc = Pref.enum("Check ICRC", 2, "In Lua a CRC over a full payload is slow", ICRC_CHOICES, false)
mrc.prefs.no_trim = Pref.uint("DSCP of data that must not be trimmed", 0, "DSCP, decimal")
mrc.prefs.trimmable = Pref.uint("DSCP of data", 4, "DSCP, decimal")
mrc.prefs.trimmable_retx = Pref.uint("DSCP of retransmissions", 8, "DSCP, decimal")
mrc.prefs.trimmed = Pref.uint("DSCP of trimmed packets", 12, "DSCP, decimal")
mrc.prefs.trimmed_lasthop = Pref.uint("DSCP of packets trimmed at the last hop", 16, "DSCP, decimal")
mrc.prefs.control = Pref.uint("DSCP of control packets", 46, "DSCP, decimal")

local CLASSES = { "no_trim", "trimmable", "trimmable_retx", "trimmed", "trimmed_lasthop", "control" }

local ipv6_header = Field.new("ipv6")
local ipv6_flow = Field.new("ipv6.flow")
local ipv6_ecn = Field.new("ipv6.tclass.ecn")
local ipv4_dscp = Field.new("ip.dsfield.dscp")
local ipv4_ecn = Field.new("ip.dsfield.ecn")
local udp_header = Field.new("udp")

-- Returns the values of a field in this packet, the outermost first.
local function values(field)
    local found = {}
    for _, info in ipairs({ field() }) do
        found[#found + 1] = info.value
    end
    return found
end

local function class_of(dscp)
    for _, name in ipairs(CLASSES) do
        if mrc.prefs[name] == dscp then
            return name:upper()
        end
    end
    return nil
end

-- ICRC: the RoCEv2 rule; hosts/rdma/frames.py describes it.

local crc_table = {}
for index = 0, 255 do
    local value = index
    for _ = 1, 8 do
        local shifted = rshift(value, 1)
        value = band(value, 1) == 1 and bxor(shifted, 0xEDB88320) or shifted
    end
    crc_table[index] = value
end

local function crc32(text, register)
    for position = 1, #text do
        register = bxor(crc_table[band(bxor(register, text:byte(position)), 0xFF)], rshift(register, 8))
    end
    return register
end

local function masked(text, positions)
    for _, position in ipairs(positions) do
        text = text:sub(1, position - 1) .. "\255" .. text:sub(position + 1)
    end
    return text
end

-- Returns the ICRC that a packet should have, or nil if its headers are not available.
local function expected_icrc(tvb)
    local headers = { ipv6_header() }
    local udp = { udp_header() }
    if #headers == 0 or #udp == 0 then
        return nil
    end
    local ip = headers[#headers].range(0, 40):raw()
    local traffic_class = string.char(band(ip:byte(1), 0xF0) + 0x0F)
    ip = masked(traffic_class .. ip:sub(2), { 2, 3, 4, 8 })
    local register = crc32(("\255"):rep(8) .. ip, 0xFFFFFFFF)
    register = crc32(masked(udp[#udp].range(0, 8):raw(), { 7, 8 }), register)
    register = crc32(masked(tvb(0, tvb:len() - ICRC_LEN):raw(), { 5 }), register)
    local value = band(bxor(register, 0xFFFFFFFF), 0xFFFFFFFF)
    return value < 0 and value + 2 ^ 32 or value -- Wireshark's own bit library is signed
end

local function add_icrc(tvb, tree, is_data)
    local range = tvb(tvb:len() - ICRC_LEN, ICRC_LEN)
    local item = tree:add_le(f.icrc, range)
    local wanted = mrc.prefs.icrc == 3 or (mrc.prefs.icrc == 2 and not is_data)
    local expected = wanted and expected_icrc(tvb) or nil
    local status = "unchecked"
    if expected ~= nil then
        status = expected == range:le_uint() and "good" or "bad"
    end
    tree:add(f.icrc_status, status):set_generated()
    item:append_text(" [" .. status .. "]")
    if status == "bad" then
        item:add_proto_expert_info(e.icrc, string.format("ICRC should be 0x%08x", expected))
    end
end

-- Headers after the BTH. Each function gets the bytes of its header, whose length has been checked, and returns
-- the text for the Info column.

local function add_cc_word(tree, range)
    tree:add(f.cc_type, range)
    tree:add(f.cc_flags, range)
end

local function add_stamp_format(tree, range)
    tree:add(f.tsr, range)
    tree:add(f.ftype, range)
end

local function psn(value)
    return value % PSN_MODULUS
end

local function span(first, last)
    first, last = psn(first), psn(last)
    return first == last and string.format("%d", first) or string.format("%d-%d", first, last)
end

-- Returns the runs of ones, and of zeros below the highest one, as ranges of PSNs. Bit i is PSN start + i.
local function runs(bytes, start)
    local received, missing = {}, {}
    local run_start, run_value = 0, nil
    for i = 0, 64 do
        local one = i < 64 and band(rshift(bytes(7 - math.floor(i / 8), 1):uint(), i % 8), 1) or nil
        if one ~= run_value then
            local list = run_value == 1 and received or missing
            if run_value ~= nil and (run_value == 1 or one ~= nil) then
                list[#list + 1] = span(start + run_start, start + i - 1)
            end
            run_start, run_value = i, one
        end
    end
    return received, missing
end

local function add_sack(range, tree)
    local sub = tree:add(f.seth, range(0, 28))
    local head, cack, entropy = range(0, 2), range(13, 3):uint(), range(4, 4):uint()
    local mark = band(rshift(head:uint(), 5), 3)
    local is_reply = band(head:uint(), 2) ~= 0
    sub:add(f.type, head)
    sub:add(f.next, head)
    local mark_item = sub:add(f.mark, head)
    sub:add(f.probe_reply, head)
    local said = ""
    if is_reply then
        sub:add(f.probe_id, range(2, 2))
        said = string.format(" answers probe %d", range(2, 2):uint())
    else
        sub:add(f.ack_psn_offset, range(2, 2))
        sub:add(f.ack_psn, range(2, 2), psn(cack + range(2, 2):int())):set_generated()
    end
    sub:add(f.entropy, range(4, 4))
    sub:add(f.spdcid, range(8, 2))
    sub:add(f.dpdcid, range(10, 2))
    sub:add(f.cack_psn, range(13, 3))
    add_cc_word(sub, range(16, 1))
    sub:add(f.mpr, range(17, 1))
    sub:add(f.sack_offset, range(18, 2))
    sub:add(f.bitmap, range(20, 8))
    local received, missing = runs(range(20, 8), cack + range(18, 2):int())
    for _, text in ipairs(received) do
        sub:add(f.range, range(20, 8), text):set_generated()
    end
    for _, text in ipairs(#received > 0 and missing or {}) do
        sub:add(f.missing, range(20, 8), text):set_generated()
    end

    local state = tree:add(f.cc_state, range(28, 8))
    state:add(f.echoed_timestamp, range(28, 2))
    state:add(f.ooo_count, range(30, 2))
    state:add(f.restore_cwnd, range(32, 1))
    state:add(f.cwnd_penalty, range(32, 1))
    state:add(f.rcvd_units, range(33, 3)):append_text(string.format(" (up to %d B)", range(33, 3):uint() * 256))

    local sacked = #received > 0 and " + " .. table.concat(received, ",") or ""
    said = string.format(" cumulative %d%s for EV 0x%08x%s", cack, sacked, entropy, said)
    if mark ~= 0 then
        local name = MARKS[mark] or "reserved mark"
        mark_item:add_proto_expert_info(e.mark, string.format("%s for EV 0x%08x", name, entropy))
        said = said .. " " .. name
    end
    return said
end

local function add_nack(range, tree)
    local sub = tree:add(f.neth, range)
    local reason, refused, entropy = range(2, 1):uint(), range(13, 3):uint(), range(4, 4):uint()
    sub:add(f.type, range(0, 2))
    sub:add(f.next, range(0, 2))
    local item = sub:add(f.reason, range(2, 1))
    sub:add(f.vendor, range(3, 1))
    sub:add(f.entropy, range(4, 4))
    sub:add(f.spdcid, range(8, 2))
    sub:add(f.dpdcid, range(10, 2))
    sub:add(f.nack_psn, range(13, 3))
    add_cc_word(sub, range(16, 1))
    sub:add(f.tx_timestamp, range(18, 2))
    local name = REASONS[reason] or string.format("reason 0x%02x", reason)
    local what = string.format("%s: PSN %d on EV 0x%08x", name, refused, entropy)
    item:add_proto_expert_info(reason == 0x19 and e.fatal or e.nack, what)
    return " " .. what
end

local function add_probe(range, tree)
    local sub = tree:add(f.peth, range)
    sub:add(f.type, range(0, 2))
    sub:add(f.next, range(0, 2))
    sub:add(f.vendor, range(3, 1))
    sub:add(f.probe_id, range(4, 2))
    sub:add(f.spdcid, range(8, 2))
    sub:add(f.dpdcid, range(10, 2))
    sub:add(f.tx_timestamp, range(12, 2))
    add_stamp_format(sub, range(14, 2))
    return string.format(" probe %d", range(4, 2):uint())
end

local function ports_up(mask)
    local ports = {}
    for port = 0, 31 do
        if band(rshift(mask, port), 1) == 1 then
            ports[#ports + 1] = port
        end
    end
    return #ports > 0 and "ports " .. table.concat(ports, ",") .. " up" or "no port up"
end

local function add_port_mask(tree, range)
    local text = ports_up(range:uint())
    tree:add(f.port_mask, range):append_text(" (" .. text .. ")")
    return text
end

local function add_endpoint_request(range, tree)
    local sub = tree:add(f.erth, range)
    local op = band(range(0, 2):uint(), 3)
    sub:add(f.type, range(0, 2))
    sub:add(f.next, range(0, 2))
    sub:add(f.request_op, range(0, 2))
    sub:add(f.vendor, range(3, 1))
    local text = add_port_mask(sub, range(4, 4))
    sub:add(f.tx_timestamp, range(12, 2))
    add_stamp_format(sub, range(14, 2))
    return " " .. (ENDPOINT_OPS[op] or "operation " .. op) .. (op == 0 and ": " .. text or "")
end

local function add_endpoint_response(range, tree)
    local sub = tree:add(f.eeth, range)
    local op = band(rshift(range(0, 2):uint(), 2), 3)
    sub:add(f.type, range(0, 2))
    sub:add(f.next, range(0, 2))
    sub:add(f.response_op, range(0, 2))
    sub:add(f.tx_timestamp, range(28, 2))
    return " " .. (ENDPOINT_OPS[op] or "operation " .. op)
end

local function add_acknowledge(range, tree)
    local sub = tree:add(f.aeth, range)
    sub:add(f.syndrome, range(0, 1))
    sub:add(f.aeth_msn, range(1, 3))
    return string.format(" MSN %d", range(1, 3):uint())
end

-- The header after the BTH of a control packet, by opcode: its length and the function that shows it.
local CONTROL = {
    [0xD1] = { 4, add_acknowledge },
    [0xD8] = { 16, add_endpoint_request },
    [0xD9] = { 36, add_endpoint_response },
    [0xDC] = { 36, add_sack },
    [0xDD] = { 20, add_nack },
    [0xDE] = { 16, add_probe },
}

local function add_bth(tvb, tree)
    local sub = tree:add(f.bth, tvb(0, BTH_LEN))
    local opcode = tvb(0, 1):uint()
    sub:add(f.opcode, tvb(0, 1))
    sub:add(f.migration, tvb(1, 1))
    sub:add(f.solicited, tvb(1, 1))
    sub:add(f.pad_count, tvb(1, 1))
    sub:add(f.version, tvb(1, 1))
    sub:add(f.pkey, tvb(2, 2))
    sub:add(f.bth_reserved, tvb(4, 1))
    sub:add(f.dest_qpn, tvb(5, 3))
    sub:add(f.ack_request, tvb(8, 1))
    local retransmission = sub:add(f.retransmission, tvb(8, 1))
    sub:add(f.has_timestamp, tvb(8, 1))
    sub:add(f.psn, tvb(9, 3))
    if opcode == 0xD8 or opcode == 0xD9 then
        sub:add(f.request_id, tvb(10, 2))
    end
    if band(tvb(8, 1):uint(), 0x20) ~= 0 then
        retransmission:add_proto_expert_info(e.retransmission, string.format("Retransmission of PSN %d", tvb(9, 3):uint()))
    end
    return sub
end

local function add_ev(tvb, pinfo, tree)
    local labels = values(ipv6_flow)
    local label = #labels > 0 and band(labels[#labels], 0xFFFF) or 0 -- over IPv4 a packet carries only one half
    local low, high = pinfo.src_port, label
    if mrc.prefs.ev_half == 2 then
        low, high = high, low
    end
    local ev = high * 65536 + low
    tree:add(f.ev, ev):set_generated()
    tree:add(f.ev_plane, high):set_generated()
    tree:add(f.ev_uplink, band(low, 0x3FFF)):set_generated()
    return ev
end

local function add_data(tvb, tree, opcode, end_of_packet, is_trimmed)
    local has_timestamp = band(tvb(8, 1):uint(), 0x10) ~= 0
    local headers = BTH_LEN + METH_LEN + (has_timestamp and TSETH_LEN or 0) + RETH_LEN
    -- A switch that trims may cut off everything after the RETH.
    local has_immediate = HAS_IMMEDIATE[opcode] and not (is_trimmed and end_of_packet == headers)
    if end_of_packet < headers + (has_immediate and IMM_LEN or 0) then
        return nil
    end
    local at = BTH_LEN
    local meth = tree:add(f.meth, tvb(at, METH_LEN))
    meth:add(f.rqmsn, tvb(at, 2))
    meth:add(f.msn, tvb(at + 2, 2))
    local said = string.format(" MSN %d", tvb(at + 2, 2):uint())
    at = at + METH_LEN
    if has_timestamp then
        local tseth = tree:add(f.tseth, tvb(at, TSETH_LEN))
        tseth:add(f.tx_timestamp, tvb(at, 2))
        add_stamp_format(tseth, tvb(at + 2, 2))
        at = at + TSETH_LEN
    end
    local reth = tree:add(f.reth, tvb(at, RETH_LEN))
    reth:add(f.va, tvb(at, 8))
    reth:add(f.rkey, tvb(at + 8, 4))
    reth:add(f.dma_length, tvb(at + 12, 4))
    local va, whole = tvb(at, 8):uint64():tohex(), tvb(at + 12, 4):uint()
    at = at + RETH_LEN
    local immediate = ""
    if has_immediate then
        tree:add(f.immediate, tvb(at, IMM_LEN))
        immediate = string.format(" imm 0x%x", tvb(at, IMM_LEN):uint())
        at = at + IMM_LEN
    end
    if is_trimmed then
        return said .. string.format(" VA 0x%s, payload cut, of %d B%s", va, whole, immediate)
    end
    local pad = band(rshift(tvb(1, 1):uint(), 4), 3)
    local length = tvb:reported_length_remaining(at) - ICRC_LEN - pad
    if length < 0 then
        return nil
    end
    local here = math.min(length, end_of_packet - at) -- less if a snapshot length cut the frame
    if here > 0 then
        tree:add(f.payload, tvb(at, here))
    end
    tree:add(f.payload_length, length):set_generated()
    if pad > 0 and end_of_packet >= at + length + pad then
        tree:add(f.pad, tvb(at + length, pad))
    end
    return said .. string.format(" VA 0x%s, %d of %d B%s", va, length, whole, immediate)
end

local roce -- the dissector of port 4791 before this one: Wireshark's RoCEv2

function mrc.dissector(tvb, pinfo, root)
    if not ours[pinfo.dst_port] then
        local owner = shadowed[pinfo.src_port] or shadowed[pinfo.dst_port]
        return owner and owner:call(tvb, pinfo, root) or 0
    end
    local opcode = tvb:len() >= BTH_LEN and tvb(0, 1):uint() or nil
    local name = opcode and OPCODES[opcode]
    if name == nil then
        return roce and roce:call(tvb, pinfo, root) or 0
    end
    pinfo.cols.protocol = "MRC"
    local tree = root:add(mrc, tvb())
    tree:append_text(", " .. name)

    local ev = add_ev(tvb, pinfo, tree)
    -- Switches write only to the outer header.
    local dscp = values(ipv6_dscp)[1] or values(ipv4_dscp)[1]
    local ecn = values(ipv6_ecn)[1] or values(ipv4_ecn)[1]
    local class = dscp and class_of(dscp)
    if class ~= nil then
        tree:add(f.class, class):set_generated()
    end
    local is_data = opcode <= 0xCB
    local is_trimmed = is_data and (class == "TRIMMED" or class == "TRIMMED_LASTHOP")
    tree:add(f.trimmed, is_trimmed):set_generated()
    tree:add(f.ce, ecn == ECN_CE):set_generated()

    local bth = add_bth(tvb, tree)
    local whole = tvb:len() == tvb:reported_len()
    local end_of_packet = tvb:len() - ((whole and not is_trimmed) and ICRC_LEN or 0)
    local said
    if is_data then
        said = add_data(tvb, tree, opcode, end_of_packet, is_trimmed)
    else
        local length, add = CONTROL[opcode][1], CONTROL[opcode][2]
        if end_of_packet >= BTH_LEN + length then
            said = add(tvb(BTH_LEN, length), tree)
        end
    end
    if said == nil then
        said = " [cut short]"
        if whole and not is_trimmed then
            bth:add_proto_expert_info(e.short)
        end
    elseif whole and not is_trimmed then
        add_icrc(tvb, tree, is_data)
    end

    local notes = ""
    if is_trimmed then
        tree:add_proto_expert_info(e.trimmed, class == "TRIMMED" and "Trimmed on the way" or "Trimmed at the last hop")
        notes = notes .. " [trimmed]"
    end
    if band(tvb(8, 1):uint(), 0x20) ~= 0 then
        notes = notes .. " [rtx]"
    end
    if ecn == ECN_CE then
        tree:add_proto_expert_info(e.ce, string.format("Marked on EV 0x%08x", ev))
        notes = notes .. " [CE]"
    end
    local qp = string.format(" QP 0x%06x", tvb(5, 3):uint())
    local number = is_data and string.format(" PSN %d", tvb(9, 3):uint()) or ""
    pinfo.cols.info = name .. qp .. number .. said .. string.format(", EV 0x%08x", ev) .. notes
    return tvb:len()
end

-- Take over 4791 from Wireshark's RoCEv2 dissector, which gets packets without an MRC opcode.

local taken

local function take_ports()
    if taken == mrc.prefs.ports then
        return
    end
    if taken ~= nil then
        udp_ports:remove(taken, mrc)
        if roce ~= nil then
            udp_ports:add(4791, roce)
        end
    end
    roce = udp_ports:get_dissector(4791)
    taken = mrc.prefs.ports
    udp_ports:add(taken, mrc)
    ours = {}
    for first, last in taken:gmatch("(%d+)%-?(%d*)") do
        first = tonumber(first)
        for port = first, tonumber(last) or first do
            ours[port] = true
        end
    end
end

function mrc.prefs_changed()
    take_ports()
end

take_ports()
