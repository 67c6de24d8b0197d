//! The daemon: the table of leases behind its socket.
