//! The DHCP servers of others: kea, dnsmasq and udhcpd, as Debian has them, and what their lease tables say.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::service::Service;
use crate::world::{Container, with};

/// ISC kea for IPv4.
pub struct Kea<'w> {
    pub service: Service<'w>,
    dir: String,
    config: Value,
}

/// One row of the lease file of kea. It is a log: the last row of an address counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub address: String,
    pub mac: String,
    /// Hexadecimal, without colons.
    pub client_id: String,
    pub lifetime_s: u32,
    pub hostname: String,
    /// 0: leased, 1: declined, 2: reclaimed.
    pub state: u32,
}

/// How kea says that it serves.
const KEA_IS_READY: &str = "_STARTED";

impl<'w> Kea<'w> {
    /// A server on the link `link` of `place`, with the three addresses 10.1.0.10 to 10.1.0.12, leases of 60 s, renewal
    /// after 1 s and rebinding after 30 s. `more` is laid over the only subnet of its configuration.
    pub fn start(place: &Container<'w>, link: &str, more: Value) -> Self {
        let subnet = with(
            &json!({
                "subnet": "10.1.0.0/24", "pools": [{"pool": "10.1.0.10 - 10.1.0.12"}],
                "valid-lifetime": 60, "renew-timer": 1, "rebind-timer": 30,
                "option-data": [{"name": "routers", "data": "10.1.0.254"}],
            }),
            more,
        );
        let dir = format!("/run/kea-{}", place.name);
        let config = json!({
            "interfaces-config": {"interfaces": [link]},
            "lease-database": {"type": "memfile", "name": format!("{dir}/leases"), "lfc-interval": 0},
            "authoritative": true,
            "expired-leases-processing": {"reclaim-timer-wait-time": 0},
            "subnet4": [subnet],
            "loggers": [{"name": "kea-dhcp4", "severity": "INFO", "output_options": [{"output": "stdout"}]}],
        });
        let file = format!("{dir}/config");
        let words = ["kea-dhcp4", "-c", &file];
        let service = Service::new(place.world, log_name(place), Some(place.netns()), &words)
            .env("KEA_LOCKFILE_DIR", "none")
            .env("KEA_PIDFILE_DIR", "/run");
        let mut kea = Self { service, dir, config };
        kea.write();
        kea.service.start(KEA_IS_READY);
        kea
    }

    fn write(&self) {
        let file = format!("{}/config", self.dir);
        self.service.world.write(&file, json!({"Dhcp4": self.config}).to_string());
    }

    /// Lays `more` over the subnet, while the server runs.
    pub fn change(&mut self, more: Value) {
        self.config["subnet4"][0] = with(&self.config["subnet4"][0], more);
        self.write();
        let count = |log: &str| log.matches("DHCP4_CONFIG_COMPLETE").count();
        let before = count(&self.service.log());
        self.service.signal(Signal::SIGHUP);
        let service = &self.service;
        service.world.within(30, "kea reads its configuration", || count(&service.log()) > before);
    }

    /// Ends the server, with a signal that lets it say nothing more.
    pub fn kill(&mut self) {
        self.service.end(Signal::SIGKILL);
    }

    /// Starts the server again, with the leases that it had.
    pub fn start_again(&mut self) {
        // The process that was killed has left its file, and another process can have its id.
        self.service.world.host(["sh", "-c", "rm -f /run/*.kea-dhcp4.pid"]);
        self.service.start(KEA_IS_READY);
    }

    /// All rows, in the order in which they were written.
    pub fn rows(&self) -> Vec<Row> {
        let file = format!("{}/leases", self.dir);
        let text = self.service.world.read(&file);
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let rows = whole.lines().filter(|line| !line.starts_with("address,"));
        rows.map(Row::new).collect()
    }

    /// The last row of each address.
    pub fn table(&self) -> Vec<Row> {
        let mut table: Vec<Row> = Vec::new();
        for row in self.rows() {
            table.retain(|other| other.address != row.address);
            table.push(row);
        }
        table
    }

    /// Addresses that are leased, whether or not their time is over.
    pub fn leased(&self) -> Vec<String> {
        let table = self.table().into_iter();
        let leased = table.filter(|row| row.lifetime_s > 0 && row.state == 0);
        leased.map(|row| row.address).collect()
    }

    /// Addresses that were leased and then released.
    pub fn released(&self) -> Vec<String> {
        let released = self.table().into_iter().filter(|row| row.lifetime_s == 0);
        released.map(|row| row.address).collect()
    }

    /// How often the server has given this address, renewals included.
    pub fn given(&self, address: &str) -> usize {
        let rows = self.rows();
        rows.iter().filter(|row| row.address == address && row.lifetime_s > 0).count()
    }

    /// Waits until the address was renewed `count` times more.
    pub fn wait_for_renewals(&self, address: &str, count: usize) {
        let begin = self.given(address);
        let what = format!("{count} renewals of {address}: {:?}", self.service.log());
        self.service.world.within(40, &what, || self.given(address) >= begin + count);
    }

    /// Waits until no address is leased, and the server was told so.
    #[track_caller]
    pub fn wait_for_release(&self, address: &str) {
        let is_released = || self.released().iter().any(|it| it == address);
        let what = format!("the server's table says that {address} is released");
        self.service.world.within(20, &what, is_released);
    }
}

/// A name for the log of a server in this place.
fn log_name(place: &Container<'_>) -> &'static str {
    if place.name == "outside" { "kea" } else { "kea2" }
}

impl Row {
    fn new(line: &str) -> Self {
        let fields: Vec<&str> = line.split(',').collect();
        Self {
            address: fields[0].into(),
            mac: fields[1].into(),
            client_id: fields[2].replace(':', ""),
            lifetime_s: fields[3].parse().unwrap(),
            hostname: fields[8].into(),
            state: fields[9].parse().unwrap(),
        }
    }
}

/// dnsmasq on the link `sw` of `place`. Its leases have two minutes at least; `options` can set T1 and T2.
pub struct Dnsmasq<'w>(pub Service<'w>);

impl<'w> Dnsmasq<'w> {
    pub fn start(place: &Container<'w>, options: &[&str]) -> Self {
        let mut words = vec![
            "dnsmasq",
            "--no-daemon",
            "--conf-file=/dev/null",
            "--user=root",
            "--group=",
            "--port=0",
            "--interface=sw",
            "--bind-interfaces",
            "--no-ping",
            "--pid-file=",
            "--dhcp-authoritative",
            "--dhcp-leasefile=/run/dnsmasq.leases",
        ];
        words.extend(options);
        let mut service = Service::new(place.world, "dnsmasq", Some(place.netns()), &words);
        service.start("sockets bound exclusively");
        Self(service)
    }

    /// Lines of the lease file: time, MAC, address, host name, client id.
    pub fn leases(&self) -> Vec<String> {
        let path = self.0.world.path("/run/dnsmasq.leases");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// udhcpd of busybox on the link `sw` of `place`, with the addresses from 10.1.0.20 to 10.1.0.22. It sends no T1 and T2.
pub struct Udhcpd<'w>(pub Service<'w>);

impl<'w> Udhcpd<'w> {
    /// `options` are lines of its configuration.
    pub fn start(place: &Container<'w>, options: &str) -> Self {
        let config = format!(
            "start 10.1.0.20\nend 10.1.0.22\nmax_leases 3\ninterface sw\nlease_file /run/udhcpd.leases\n\
             pidfile /run/udhcpd.pid\nauto_time 0\nmin_lease 1\nopt subnet 255.255.255.0\n\
             opt router 10.1.0.254\n{options}\n"
        );
        let world = place.world;
        world.write("/run/udhcpd.conf", config);
        world.write("/run/udhcpd.leases", "");
        let words = ["udhcpd", "-f", "/run/udhcpd.conf"];
        let mut service = Service::new(world, "udhcpd", Some(place.netns()), &words);
        service.start("udhcpd: started");
        Self(service)
    }

    /// The table as `dumpleases` prints it.
    pub fn leases(&self) -> String {
        self.0.signal(Signal::SIGUSR1);
        let tool = ["dumpleases", "-f", "/run/udhcpd.leases"];
        self.0.world.tool(&tool, None).run().stdout
    }
}
