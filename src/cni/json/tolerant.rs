//! Converts documents with unreadable keys, for DEL and GC: these keys are ignored.

use std::borrow::Cow;

use super::error::{self, Step};
use super::{Json, Read, is_key};
use crate::error::{Error, Result};

/// `drop_key` drops the innermost key around an error. After this number of errors, it drops the top-level key around the
/// error: the document is read again after each error, so the time for a long list of errors would be quadratic.
const INNERMOST_MAX: usize = 100;

impl Json {
    /// Like `read`, but drops each unreadable key, and returns the errors together with the value. The dropped key is the
    /// innermost key on the path to the error. Fails if the path has no key, for example if the document is not an object.
    pub fn read_or_drop<T: Read + Default>(&self, what: &str) -> Result<(T, Vec<Error>)> {
        self.read_or_drop_with(what, Self::converted)
    }

    /// `read_or_drop` with a conversion of the caller. It is called again after each dropped key.
    pub fn read_or_drop_with<T>(
        &self,
        what: &str,
        convert: impl Fn(&Self) -> Result<T, error::Error>,
    ) -> Result<(T, Vec<Error>)> {
        let (mut json, mut errors) = (Cow::Borrowed(self), Vec::new());
        loop {
            match convert(&json) {
                Ok(value) => return Ok((value, errors)),
                Err(error) => drop_key(&mut json, &error, what, &mut errors)?,
            }
        }
    }
}

fn drop_key(
    json: &mut Cow<'_, Json>,
    error: &error::Error,
    what: &str,
    errors: &mut Vec<Error>,
) -> Result<()> {
    let unreadable = error.in_document(what);
    let path = error.path();
    let removed = if errors.len() < INNERMOST_MAX {
        let innermost = path.iter().position(|step| matches!(step, Step::Key(..)));
        innermost.and_then(|key| remove(json.to_mut(), &path[key..]))
    } else {
        path.last().and_then(|key| remove_all(json.to_mut(), key))
    };
    removed.ok_or_else(|| unreadable.clone())?;
    errors.push(unreadable);
    Ok(())
}

/// Removes the entry that a path leads to. The first step of the path is the innermost one.
fn remove(json: &mut Json, path: &[Step]) -> Option<()> {
    let (Step::Key(_, index), outer) = path.split_first()? else { return None };
    let mut container = json;
    for step in outer.iter().rev() {
        container = match (step, container) {
            (Step::Key(_, index), Json::Object(entries)) => &mut entries.get_mut(*index)?.1,
            (Step::Index(index), Json::Array(values)) => values.get_mut(*index)?,
            _ => return None,
        };
    }
    let Json::Object(entries) = container else { return None };
    entries.get(*index)?;
    entries.remove(*index);
    Some(())
}

/// Removes all entries of an object that have this key, in upper or lower case.
fn remove_all(json: &mut Json, key: &Step) -> Option<()> {
    let (Step::Key(key, _), Json::Object(entries)) = (key, json) else { return None };
    entries.retain(|(name, _)| !is_key(name, key));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::super::{Map, keys};
    use super::*;

    keys! {
        #[derive(Debug, PartialEq)]
        struct Sample {
            "name" => name: String,
            "port" => port: u16,
            "list" => list: Vec<Self>,
            "flags" => flags: Map<bool>,
            "dns" => dns: Dns,
            "strict" => strict: Option<Strict>,
        }

        #[derive(Debug, PartialEq)]
        struct Dns {
            "search" => search: Vec<String>,
            "domain" => domain: String,
        }

        #[derive(Debug, PartialEq)]
        struct Strict requires "id" {
            "id" => id: u16,
        }
    }

    /// Checks that the document is read as `equivalent`, with these errors.
    fn check(text: &str, equivalent: &str, errors: &[&str]) {
        let json = Json::parse(text.as_bytes()).unwrap();
        let before = json.clone();
        let (sample, found): (Sample, _) = json.read_or_drop("it").unwrap();
        let expected = Json::parse(equivalent.as_bytes()).unwrap().read::<Sample>("it").unwrap();
        assert_eq!(sample, expected, "{text}");
        let found: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, errors, "{text}");
        assert_eq!(json, before);
    }

    #[test]
    fn unreadable_keys_are_dropped_and_reported() {
        let cases: &[(&str, &str, &[&str])] = &[
            (r#"{"name":"a","port":1}"#, r#"{"name":"a","port":1}"#, &[]),
            (
                r#"{"name":"a","port":"1"}"#,
                r#"{"name":"a"}"#,
                &[
                    "cannot read it: port: invalid type: string \"1\", expected an integer from 0 to 65535",
                ],
            ),
            (
                r#"{"x":1,"name":5,"dns":{"y":2,"DOMAIN":6,"search":["s"]},"port":7}"#,
                r#"{"dns":{"search":["s"]},"port":7}"#,
                &[
                    "cannot read it: name: invalid type: integer `5`, expected a string",
                    "cannot read it: dns.DOMAIN: invalid type: integer `6`, expected a string",
                ],
            ),
            (
                r#"{"list":[{"port":1},{"name":"b","port":70000},{"list":[{"port":[],"name":"c"}]}]}"#,
                r#"{"list":[{"port":1},{"name":"b"},{"list":[{"name":"c"}]}]}"#,
                &[
                    "cannot read it: list[1].port: invalid value: integer `70000`, expected an integer from 0 to 65535",
                    "cannot read it: list[2].list[0].port: invalid type: list, expected an integer from 0 to 65535",
                ],
            ),
            (
                r#"{"list":[{},5],"dns":{"domain":"d","search":["a",{}]}}"#,
                r#"{"dns":{"domain":"d"}}"#,
                &[
                    "cannot read it: list[1]: invalid type: integer `5`, expected an object",
                    "cannot read it: dns.search[1]: invalid type: object, expected a string",
                ],
            ),
            (
                r#"{"flags":{"a":true,"b":1,"b":null,"c":false}}"#,
                r#"{"flags":{"a":true,"c":false}}"#,
                &[
                    "cannot read it: flags.b: invalid type: integer `1`, expected a boolean",
                    "cannot read it: flags.b: invalid type: null, expected a boolean",
                ],
            ),
            (
                r#"{"strict":{"x":1},"name":"a"}"#,
                r#"{"name":"a"}"#,
                &["cannot read it: strict: missing key `id`"],
            ),
            // The earlier value counts, as in Go.
            (
                r#"{"Name":"a","NAME":5}"#,
                r#"{"name":"a"}"#,
                &["cannot read it: NAME: invalid type: integer `5`, expected a string"],
            ),
        ];
        for (text, equivalent, errors) in cases {
            check(text, equivalent, errors);
        }
    }

    #[test]
    fn a_document_of_another_type_is_refused() {
        for text in ["[]", "5", "null", "\"x\""] {
            let json = Json::parse(text.as_bytes()).unwrap();
            let read = json.read::<Sample>("it").unwrap_err();
            assert_eq!(json.read_or_drop::<Sample>("it").unwrap_err(), read, "{text}");
        }
        let json = Json::parse(b"{\"x\":1}").unwrap();
        let error = json.read_or_drop::<Strict>("it").unwrap_err();
        assert_eq!(error.to_string(), "cannot read it: missing key `id`");
    }

    #[test]
    fn many_mistakes_drop_the_key_of_the_document() {
        let keys = vec![r#""port":"x""#; 50_000].join(",");
        let json = Json::parse(format!("{{{keys}}}").as_bytes()).unwrap();
        let (_, errors) = json.read_or_drop::<Sample>("it").unwrap();
        assert_eq!(errors.len(), INNERMOST_MAX + 1);

        let list = vec![r#"{"port":"x"}"#; 50_000].join(",");
        let json = Json::parse(format!(r#"{{"list":[{list}],"name":"a"}}"#).as_bytes()).unwrap();
        let (sample, errors): (Sample, _) = json.read_or_drop("it").unwrap();
        assert_eq!(sample, Sample { name: "a".into(), ..Sample::default() });
        assert_eq!(errors.len(), INNERMOST_MAX + 1);
    }
}
