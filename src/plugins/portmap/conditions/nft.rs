//! Conditions as parts of an nft rule: `["iifname", "!=", "eth0", "ip saddr { 10.0.0.0/8, 192.0.2.1 }"]`.

use super::{Subject, Term};
use crate::names::IpFamily;
use crate::netlink::nft::Family;

/// Converts the parts of an nft rule to terms, in the same order.
pub(super) fn terms(family: IpFamily, pieces: &[String]) -> Result<Vec<Term>, String> {
    let family = Family::from(family);
    let words = words(&pieces.join(" "));
    let mut rest = words.iter().map(String::as_str).peekable();
    let mut terms = Vec::new();
    while let Some(first) = rest.next() {
        let mut transport = None;
        let subject = match first {
            "ip" | "ip6" if first != family.to_string() => {
                return Err(format!("{first} is the other family: the rules are for {family}"));
            }
            "ip" | "ip6" => match rest.next() {
                Some("saddr") => Subject::Saddr,
                Some("daddr") => Subject::Daddr,
                Some("protocol") if first == "ip" => Subject::Protocol,
                Some("nexthdr") if first == "ip6" => Subject::Protocol,
                other => return Err(unknown(first, other)),
            },
            "tcp" | "udp" | "sctp" | "th" => {
                transport = (first != "th").then_some(first);
                match rest.next() {
                    Some("sport") => Subject::Sport,
                    Some("dport") => Subject::Dport,
                    other => return Err(unknown(first, other)),
                }
            }
            "meta" => {
                let key = rest.next();
                key.and_then(meta).ok_or_else(|| unknown(first, key))?
            }
            "ct" => match rest.next() {
                Some("mark") => Subject::CtMark,
                other => return Err(unknown(first, other)),
            },
            "fib" => match (rest.next(), rest.next()) {
                (Some("daddr"), Some("type")) => Subject::DaddrType,
                (other, _) => return Err(unknown(first, other)),
            },
            key => meta(key).filter(|_| key != "l4proto").ok_or_else(|| unknown(key, None))?,
        };
        let is_negated = match rest.peek() {
            Some(&("!=" | "ne")) => rest.next().is_some(),
            Some(&("==" | "eq")) => rest.next().is_none(),
            _ => false,
        };
        if let Some(transport) = transport {
            terms.push(Term::new(Subject::Protocol, false, vec![transport.into()]));
        }
        terms.push(Term::new(subject, is_negated, values(first, &mut rest)?));
    }
    Ok(terms)
}

fn meta(key: &str) -> Option<Subject> {
    match key {
        "iifname" => Some(Subject::Iifname),
        "oifname" => Some(Subject::Oifname),
        // `iif` becomes `iifname`, because a name also matches a link that was deleted and made again.
        "iif" => Some(Subject::Iifname),
        "oif" => Some(Subject::Oifname),
        "l4proto" => Some(Subject::Protocol),
        "mark" => Some(Subject::Mark),
        _ => None,
    }
}

/// Reads one value, or several in braces.
fn values<'a>(
    expression: &str,
    rest: &mut impl Iterator<Item = &'a str>,
) -> Result<Vec<String>, String> {
    match rest.next() {
        Some("{") => {}
        Some(value) if !matches!(value, "}" | ",") => return Ok(vec![value.into()]),
        _ => return Err(format!("the expression {expression} lacks its value")),
    }
    let mut values = Vec::new();
    loop {
        match rest.next() {
            Some("}") => return Ok(values),
            Some(",") => {}
            Some(value) => values.push(value.into()),
            None => return Err(format!("the list of the expression {expression} has no end")),
        }
    }
}

fn unknown(first: &str, second: Option<&str>) -> String {
    let second = second.map_or_else(String::new, |second| format!(" {second}"));
    format!("the expression {first}{second} cannot be expressed")
}

/// Splits a rule at white space and around signs. A quoted text is one word.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in text.split('"').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
            continue;
        }
        let apart = ["{", "}", ",", "!=", "=="]
            .into_iter()
            .fold(part.to_owned(), |text, sign| text.replace(sign, &format!(" {sign} ")));
        words.extend(apart.split_whitespace().map(str::to_owned));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::super::shown;
    use super::*;

    #[test]
    fn expressions_give_terms() {
        for (text, expected) in [
            ("ip saddr 10.0.0.0/8", "Saddr 10.0.0.0/8"),
            ("ip saddr != { 10.0.0.1,10.0.0.2 }", "!Saddr 10.0.0.1|10.0.0.2"),
            ("iifname \"eth*\" meta l4proto tcp", "Iifname eth*, Protocol tcp"),
            ("tcp dport!=1000-2000", "Protocol tcp, !Dport 1000-2000"),
            ("th sport 53 meta mark 0x1 ct mark ne 2", "Sport 53, Mark 0x1, !CtMark 2"),
            ("fib daddr type local", "DaddrType local"),
            ("ip protocol eq udp oif lo", "Protocol udp, Oifname lo"),
            ("", ""),
        ] {
            let terms = terms(IpFamily::V4, &[text.to_owned()]).unwrap();
            assert_eq!(shown(&terms), expected, "{text}");
        }
    }

    #[test]
    fn an_unknown_expression_is_named() {
        for (text, named) in [
            ("ip6 saddr fd00::1", "ip6"),
            ("ip ttl 1", "ip ttl"),
            ("limit rate 1/second", "limit"),
            ("ip saddr", "ip"),
            ("ip saddr { 10.0.0.1", "ip"),
            ("tcp flags syn", "tcp flags"),
            ("accept", "accept"),
            ("l4proto tcp", "l4proto"),
        ] {
            let error = terms(IpFamily::V4, &[text.to_owned()]).err().unwrap();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
