"""Write and read P4Runtime entities: one module for each kind of entity."""
