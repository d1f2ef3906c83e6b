"""The lines that tests type into p4runtime-shell, on this machine and in Docker."""

SCRIPT = """\
tables
entry = table_entry["ingress_fault.fault"](action="ingress_fault.blackhole")
entry.match["port"] = "9"
entry.insert
found = list(table_entry["ingress_fault.fault"].read())
print("FOUND", len(found), found[0].action.action_name)
"""
