//! Conditions as arguments of iptables, one per element of the list: `["-s", "10.0.0.0/8", "!", "-i", "eth0"]`.

use super::{Subject, Term};

/// Converts the arguments of iptables to terms, in the same order.
pub(super) fn terms(arguments: &[String]) -> Result<Vec<Term>, String> {
    let mut terms = Vec::new();
    let mut rest = arguments.iter().map(String::as_str);
    let mut is_negated = false;
    // The match (`-m`) of the next options. Several matches have options of the same name.
    let mut module = "";
    while let Some(argument) = rest.next() {
        if argument == "!" {
            if is_negated {
                return Err("two ! follow each other".into());
            }
            is_negated = true;
            continue;
        }
        let (option, joined) = match argument.split_once('=') {
            Some((option, value)) if option.starts_with("--") => (option, Some(value)),
            _ => (argument, None),
        };
        let Some(meaning) = Meaning::of(option, module) else {
            return Err(format!("the option {option} cannot be expressed"));
        };
        let value = joined.or_else(|| rest.next());
        let value = value.ok_or_else(|| format!("the option {option} lacks its value"))?;
        match meaning {
            Meaning::Module if is_negated => {
                return Err(format!("{option} cannot be negated"));
            }
            Meaning::Module => {
                if !MODULES.contains(&value) {
                    return Err(format!("the match {option} {value} cannot be expressed"));
                }
                module = value;
            }
            Meaning::Ignored => {}
            // Every packet meets this condition, so it becomes no term.
            Meaning::Condition(Subject::Protocol, _)
                if matches!(value, "all" | "0") && !is_negated => {}
            Meaning::Condition(subject, list) => {
                terms.push(Term::new(subject, is_negated, list.values(value)));
            }
        }
        is_negated = false;
    }
    if is_negated { Err("no option follows the last !".into()) } else { Ok(terms) }
}

/// The supported matches of iptables (`-m`).
const MODULES: [&str; 9] =
    ["comment", "tcp", "udp", "sctp", "multiport", "mark", "connmark", "addrtype", "iprange"];

enum Meaning {
    /// `-m`
    Module,
    /// `--comment`
    Ignored,
    Condition(Subject, List),
}

/// The notation of several values in one argument.
enum List {
    /// Only one value.
    Single,
    /// Separated by commas.
    Commas,
    /// A range with a colon.
    Colon,
    /// Values and ranges with a colon, separated by commas.
    CommasAndColons,
    /// A prefix with `+` at its end.
    Plus,
}

impl Meaning {
    fn of(option: &str, module: &str) -> Option<Self> {
        Some(match option {
            "-m" | "--match" => Self::Module,
            "--comment" => Self::Ignored,
            "-s" | "--source" | "--src" => Self::Condition(Subject::Saddr, List::Commas),
            "-d" | "--destination" | "--dst" => Self::Condition(Subject::Daddr, List::Commas),
            "-i" | "--in-interface" => Self::Condition(Subject::Iifname, List::Plus),
            "-o" | "--out-interface" => Self::Condition(Subject::Oifname, List::Plus),
            "-p" | "--protocol" | "--proto" => Self::Condition(Subject::Protocol, List::Single),
            "--sport" | "--source-port" => Self::Condition(Subject::Sport, List::Colon),
            "--dport" | "--destination-port" => Self::Condition(Subject::Dport, List::Colon),
            "--sports" | "--source-ports" => Self::Condition(Subject::Sport, List::CommasAndColons),
            "--dports" | "--destination-ports" => {
                Self::Condition(Subject::Dport, List::CommasAndColons)
            }
            "--src-range" => Self::Condition(Subject::Saddr, List::Single),
            "--dst-range" => Self::Condition(Subject::Daddr, List::Single),
            "--dst-type" => Self::Condition(Subject::DaddrType, List::Single),
            "--mark" if module == "connmark" => Self::Condition(Subject::CtMark, List::Single),
            "--mark" => Self::Condition(Subject::Mark, List::Single),
            _ => return None,
        })
    }
}

impl List {
    /// The values in the notation of `Term`: ranges with a hyphen, prefixes with a star.
    fn values(&self, text: &str) -> Vec<String> {
        match self {
            Self::Single => vec![text.into()],
            Self::Commas => text.split(',').map(str::to_owned).collect(),
            Self::Colon => vec![range(text)],
            Self::CommasAndColons => text.split(',').map(range).collect(),
            Self::Plus => vec![match text.strip_suffix('+') {
                Some(prefix) => format!("{prefix}*"),
                None => text.into(),
            }],
        }
    }
}

/// Converts `8000:8080` to `8000-8080`. The first port defaults to 0, the last one to 65535.
fn range(text: &str) -> String {
    match text.split_once(':') {
        None => text.into(),
        Some((first, last)) => {
            let first = if first.is_empty() { "0" } else { first };
            let last = if last.is_empty() { "65535" } else { last };
            format!("{first}-{last}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::shown;
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn options_give_terms() {
        for (text, expected) in [
            ("-s 10.0.0.0/8", "Saddr 10.0.0.0/8"),
            ("! --source=10.0.0.1,10.0.0.2", "!Saddr 10.0.0.1|10.0.0.2"),
            ("-i eth+ -p tcp", "Iifname eth*, Protocol tcp"),
            ("-p all -m comment --comment hello", ""),
            ("-m tcp ! --dport 1000:", "!Dport 1000-65535"),
            ("-m multiport --dports 1,2:3", "Dport 1|2-3"),
            ("-m mark --mark 1/1 -m connmark --mark 2", "Mark 1/1, CtMark 2"),
            ("-m addrtype --dst-type LOCAL", "DaddrType LOCAL"),
            ("-m iprange --src-range 10.0.0.1-10.0.0.9", "Saddr 10.0.0.1-10.0.0.9"),
        ] {
            let terms = terms(&words(text)).unwrap();
            assert_eq!(shown(&terms), expected, "{text}");
        }
    }

    #[test]
    fn an_unknown_option_is_named() {
        for (text, named) in [
            ("-m limit --limit 1/s", "-m limit"),
            ("--syn", "--syn"),
            ("-f", "-f"),
            ("-s", "-s"),
            ("-j ACCEPT", "-j"),
            ("! ! -s 10.0.0.1", "!"),
            ("-s 10.0.0.1 !", "!"),
            ("! -m comment", "-m"),
            ("stray", "stray"),
        ] {
            let error = terms(&words(text)).err().unwrap();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
