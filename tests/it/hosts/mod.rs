//! Hosts and containers that are more than a container host: an administrator's own addresses, rules, routes and VPNs.

mod link_local_gateway;
mod link_of_two;
mod virtual_service;
