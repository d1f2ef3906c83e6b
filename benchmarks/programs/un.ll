; uN (RFC 9800 section 4.1.1) written by hand for the BPF back end: what a P4 program that does the same is
; measured against. No counters, no queues, no faults, one hash look-up.
;
; Map 0 is an array whose only value is the own SID: block and uSID, 6 bytes in network order and two zeros.
; Map 1 is a hash from such a SID to the interface (u32), the destination and the source MAC address.
target triple = "bpfel"

declare i64 @llvm.bpf.pseudo(i64, i64)

define i32 @un(ptr %ctx) section "classifier" {
entry:
  %key = alloca i64, align 8
  %data.at = getelementptr i8, ptr %ctx, i64 76
  %end.at = getelementptr i8, ptr %ctx, i64 80
  %data.32 = load i32, ptr %data.at, align 4
  %end.32 = load i32, ptr %end.at, align 4
  %data.64 = zext i32 %data.32 to i64
  %end.64 = zext i32 %end.32 to i64
  %data = inttoptr i64 %data.64 to ptr
  %end = inttoptr i64 %end.64 to ptr
  %behind = getelementptr i8, ptr %data, i64 54
  %short = icmp ugt ptr %behind, %end
  br i1 %short, label %shot, label %whole

whole:
  %type.at = getelementptr i8, ptr %data, i64 12
  %type = load i16, ptr %type.at, align 2
  %ipv6 = icmp eq i16 %type, -8826                      ; 0x86dd in network order
  br i1 %ipv6, label %header, label %shot

header:
  %hops.at = getelementptr i8, ptr %data, i64 21
  %hops = load i8, ptr %hops.at, align 1
  %alive = icmp ugt i8 %hops, 1
  br i1 %alive, label %address, label %shot

address:
  %high.at = getelementptr i8, ptr %data, i64 38
  %low.at = getelementptr i8, ptr %data, i64 46
  %high = load i64, ptr %high.at, align 1
  %low = load i64, ptr %low.at, align 1
  %own.64 = call i64 @llvm.bpf.pseudo(i64 2, i64 1297088512)
  %own.at = inttoptr i64 %own.64 to ptr
  %own = load i64, ptr %own.at, align 8
  %sid = and i64 %high, 281474976710655
  %ours = icmp eq i64 %sid, %own
  br i1 %ours, label %shift, label %shot

shift:
  %next = lshr i64 %high, 48
  %rest = or i64 %next, %low
  %ended = icmp eq i64 %rest, 0
  br i1 %ended, label %shot, label %look

look:
  %block = and i64 %high, 4294967295
  %next.in = shl i64 %next, 32
  %active = or i64 %block, %next.in
  store i64 %active, ptr %key, align 8
  %map.64 = call i64 @llvm.bpf.pseudo(i64 1, i64 1297088513)
  %map = inttoptr i64 %map.64 to ptr
  %hop = call ptr inttoptr (i64 1 to ptr)(ptr %map, ptr %key)
  %none = icmp eq ptr %hop, null
  br i1 %none, label %shot, label %send

send:
  %after.in = shl i64 %low, 48
  %high.new = or i64 %active, %after.in
  %low.new = lshr i64 %low, 16
  store i64 %high.new, ptr %high.at, align 1
  store i64 %low.new, ptr %low.at, align 1
  %hops.new = add i8 %hops, -1
  store i8 %hops.new, ptr %hops.at, align 1
  %macs.at = getelementptr i8, ptr %hop, i64 4
  %macs = load i64, ptr %macs.at, align 4
  store i64 %macs, ptr %data, align 1
  %more.at = getelementptr i8, ptr %hop, i64 12
  %more = load i32, ptr %more.at, align 4
  %more.to = getelementptr i8, ptr %data, i64 8
  store i32 %more, ptr %more.to, align 1
  %interface.32 = load i32, ptr %hop, align 4
  %interface = zext i32 %interface.32 to i64
  %done = call i64 inttoptr (i64 23 to ptr)(i64 %interface, i64 0)
  %code = trunc i64 %done to i32
  ret i32 %code

shot:
  ret i32 2
}
