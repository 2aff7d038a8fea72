"""The Delta IO manager and its parts: frames go into tables and come out of them, reads and writes are reported."""
