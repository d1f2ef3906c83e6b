"""Plain values that the compiler and the runtime share: layouts, map specifications, constants."""
