//! `conditionsV4` and `conditionsV6`: further conditions on packets to published ports, as arguments of iptables or as parts
//! of an nft rule. A condition without an nf_tables expression here is an error that names the condition.

mod iptables;
mod nft;

use std::net::IpAddr;

use ipnet::IpNet;

use crate::attachments::owner;
use crate::error::{Error, Result};
use crate::names::{IfName, IpFamily};
use crate::netlink::nft::{Condition, Expr, Family, Field, Transport, in_range, not_in_range};
use crate::netlink::octets;

/// The parsed list `conditionsV4` or `conditionsV6`.
pub struct Conditions {
    /// The list as it is written in the configuration. Lists with equal texts share a group.
    pub text: String,
    /// A packet must meet every expression of one alternative.
    pub alternatives: Vec<Vec<Expr>>,
}

/// One condition: the subject has one of the values, or none of them.
struct Term {
    subject: Subject,
    is_negated: bool,
    values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Saddr,
    Daddr,
    Sport,
    Dport,
    Iifname,
    Oifname,
    Protocol,
    Mark,
    CtMark,
    /// `fib daddr type`
    DaddrType,
}

/// Whether a list of conditions is in the notation of iptables, not of nft. `first` is the first element of the list.
pub fn is_iptables_style(first: &str) -> bool {
    first.starts_with(['-', '!'])
}

impl Conditions {
    /// Parses the list of a key of the configuration. Errors name the key.
    pub fn parse(key: &str, family: IpFamily, list: &[String]) -> Result<Self> {
        let in_key = |reason: String| Error::config(format_args!("{key}: {reason}"));
        let is_iptables = list.first().is_some_and(|first| is_iptables_style(first));
        let terms = if is_iptables { iptables::terms(list) } else { nft::terms(family, list) };
        let mut alternatives = vec![Vec::new()];
        for term in terms.map_err(in_key)? {
            let choices = term.choices(family).map_err(in_key)?;
            alternatives = alternatives
                .iter()
                .flat_map(|some: &Vec<Expr>| {
                    choices.iter().map(move |choice| [some.as_slice(), choice].concat())
                })
                .collect();
            if alternatives.len() > ALTERNATIVES_MAX {
                return Err(in_key(format!(
                    "the lists multiply to more than {ALTERNATIVES_MAX} rules"
                )));
            }
        }
        Ok(Self { text: list.join(" "), alternatives })
    }

    pub fn none() -> Self {
        Self { text: String::new(), alternatives: vec![Vec::new()] }
    }

    /// Whether the list is empty, so that every packet meets the conditions.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The hash of the text, for the names of the group: lists with equal texts have the same hash.
    pub fn id(&self) -> String {
        format!("{:016x}", owner::hash(&self.text))
    }
}

impl Term {
    fn new(subject: Subject, is_negated: bool, values: Vec<String>) -> Self {
        Self { subject, is_negated, values }
    }

    /// The alternatives of the term. A packet must meet one of them.
    fn choices(&self, family: IpFamily) -> Result<Vec<Vec<Expr>>, String> {
        let parse = |value: &String| self.condition(family, value);
        let each: Vec<Vec<Expr>> = self.values.iter().map(parse).collect::<Result<_, _>>()?;
        if each.is_empty() {
            return Err("a list is empty".into());
        }
        Ok(if self.is_negated { vec![each.concat()] } else { each })
    }

    fn condition(&self, family: IpFamily, value: &str) -> Result<Vec<Expr>, String> {
        let [saddr, daddr] = Field::addresses(family);
        let condition = match self.subject {
            Subject::Saddr | Subject::Daddr if value.contains('-') => {
                let field = if self.subject == Subject::Saddr { saddr } else { daddr };
                return self.range(field, value, |text| address_bytes(family, text));
            }
            Subject::Sport | Subject::Dport if value.contains('-') => {
                let field =
                    if self.subject == Subject::Sport { Field::Sport } else { Field::Dport };
                return self.range(field, value, |text| Ok(port(text)?.to_be_bytes().into()));
            }
            Subject::Saddr => Condition::saddr(net(family, value)?),
            Subject::Daddr => Condition::daddr(net(family, value)?),
            Subject::Sport => Condition::sport(port(value)?),
            Subject::Dport => Condition::dport(port(value)?),
            Subject::Iifname | Subject::Oifname => self.name(value)?,
            Subject::Protocol => {
                let mut condition = Condition::protocol(Transport::Tcp);
                condition.value = vec![protocol(value)?];
                condition
            }
            Subject::Mark | Subject::CtMark => {
                let (value, mask) = value.split_once('/').unwrap_or((value, "0xffffffff"));
                let (value, mask) = (number(value)?, number(mask)?);
                match self.subject {
                    Subject::Mark => Condition::mark(mask, value),
                    _ => Condition::ct_mark(mask, value),
                }
            }
            Subject::DaddrType if value.eq_ignore_ascii_case("local") => {
                Condition::fib_daddr_type_local()
            }
            Subject::DaddrType => {
                return Err(format!("the type of address {value} cannot be expressed"));
            }
        };
        let condition = if self.is_negated { condition.negated() } else { condition };
        Ok(condition.into_iter().collect())
    }

    /// The name of an interface, or a prefix of names with `*` at its end.
    fn name(&self, value: &str) -> Result<Condition, String> {
        let name = IfName::new(value.strip_suffix('*').unwrap_or(value));
        let name = name.map_err(|error| error.to_string())?;
        Ok(match (self.subject == Subject::Iifname, value.ends_with('*')) {
            (true, false) => Condition::iifname(&name),
            (true, true) => Condition::begins(Field::Iifname, &name),
            (false, false) => Condition::oifname(&name),
            (false, true) => Condition::begins(Field::Oifname, &name),
        })
    }

    fn range(
        &self,
        field: Field,
        value: &str,
        parse: impl Fn(&str) -> Result<Vec<u8>, String>,
    ) -> Result<Vec<Expr>, String> {
        let (first, last) = value.split_once('-').unwrap_or((value, value));
        let (first, last) = (parse(first)?, parse(last)?);
        if first > last {
            return Err(format!("the range {value} is empty"));
        }
        Ok(if self.is_negated {
            not_in_range(field, &first, &last)
        } else {
            in_range(field, &first, &last)
        })
    }
}

fn net(family: IpFamily, text: &str) -> Result<IpNet, String> {
    let net = match text.split_once('/') {
        None => text.parse::<IpAddr>().ok().map(IpNet::from),
        Some((address, mask)) => {
            let address: Option<IpAddr> = address.parse().ok();
            address.and_then(|address| match mask.parse::<u8>() {
                Ok(length) => IpNet::new(address, length).ok(),
                Err(_) => IpNet::with_netmask(address, mask.parse().ok()?).ok(),
            })
        }
    };
    let net = net.ok_or_else(|| format!("{text} is not an address or a prefix"))?;
    if family.has(net.addr()) {
        Ok(net)
    } else {
        Err(format!(
            "{text} is an address of the other family: the rules are for {}",
            Family::from(family)
        ))
    }
}

fn address_bytes(family: IpFamily, text: &str) -> Result<Vec<u8>, String> {
    Ok(octets(net(family, text)?.addr()))
}

fn port(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| format!("{text} is not a port (0 to 65535)"))
}

fn protocol(text: &str) -> Result<u8, String> {
    match Transport::named(text) {
        Some(transport) => Ok(transport.number()),
        None => text.parse().map_err(|_| format!("{text} is not tcp, udp, sctp or a number")),
    }
}

fn number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("{text} is not a number of 32 bits"))
}

/// The maximum number of alternatives of a list of conditions. Each alternative has two rules.
const ALTERNATIVES_MAX: usize = 64;

/// The terms in one line, for tests.
#[cfg(test)]
fn shown(terms: &[Term]) -> String {
    let shown = terms.iter().map(|term| {
        let not = if term.is_negated { "!" } else { "" };
        format!("{not}{:?} {}", term.subject, term.values.join("|"))
    });
    shown.collect::<Vec<_>>().join(", ")
}
