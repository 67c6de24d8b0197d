//! Compares the parser with serde_json, and with Go where the two differ.

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;

use super::*;

/// The value as a `Value` of serde_json, which keeps only the last of repeated keys.
fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => serde_json::from_str(&number.to_string()).unwrap(),
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(values) => Value::from_iter(values.iter().map(value)),
        Json::Object(entries) => {
            Value::from_iter(entries.iter().map(|(key, inner)| (key.as_str(), value(inner))))
        }
        Json::Raw(text) => value(&parse(text.as_bytes()).unwrap()),
    }
}

fn documents() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        prop::sample::select(vec![
            "null", "true", "false", "0", "-0", "1.50", "-2e-3", "7E+2", "[]", "{}", "[ ]", "\"\"",
        ])
        .prop_map(String::from),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<u64>().prop_map(|number| number.to_string()),
        any::<String>().prop_map(|text| Value::from(text).to_string()),
        vec(prop::sample::select(vec!["\\u0041", "\\ud83d\\ude00", "\\/", "\\n", "é", "x"]), 0..4)
            .prop_map(|parts| format!("\"{}\"", parts.concat())),
    ];
    leaf.prop_recursive(5, 40, 5, |inner| {
        let white = prop::sample::select(vec!["", " ", "\n", "\t \r\n"]);
        let key = "[a-c\"\\\\]{0,2}".prop_map(|key| Value::from(key).to_string());
        let entry = (key, white.clone(), inner.clone())
            .prop_map(|(key, white, value)| format!("{white}{key}{white}:{value}{white}"));
        prop_oneof![
            (vec(inner, 0..5), white).prop_map(|(values, white)| {
                format!("[{white}{}{white}]", values.join(&format!("{white},")))
            }),
            vec(entry, 0..5).prop_map(|entries| format!("{{{}}}", entries.join(","))),
        ]
    })
}

/// Documents in which up to three bytes are removed, replaced or inserted.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        prop::sample::select(b"{}[]:,\"\\ \n019.-+eEtfnu\x00\x1f\x7f\x80\xff".to_vec()),
        any::<u8>()
    ];
    let change = (any::<prop::sample::Index>(), 0..3, byte);
    (documents(), vec(change, 1..4)).prop_map(|(text, changes)| {
        let mut bytes = text.into_bytes();
        for (at, kind, byte) in changes {
            let at = at.index(bytes.len() + 1);
            let removed = usize::from(kind > 0 && at < bytes.len());
            bytes.splice(at..at + removed, (kind < 2).then_some(byte));
        }
        bytes
    })
}

/// Checks that the parser accepts the same bytes as serde_json and reads the same value, except where Go differs; also for a
/// value below the last level.
fn check(bytes: &[u8]) {
    compare(bytes);
    let (before, after) = ([b'['; LEVELS_MAX], [b']'; LEVELS_MAX]);
    compare(&[&before, bytes, &after].concat());
}

fn compare(bytes: &[u8]) {
    let text = decode(bytes);
    let shown = &text;
    match (parse(bytes), serde_json::from_str::<Value>(&text)) {
        (Ok(json), Ok(expected)) => assert_eq!(value(&json), expected, "{shown}"),
        (Err(_), Err(_)) => {}
        (Ok(_), Err(error)) => {
            let error = error.to_string();
            let known = ["number out of range", "surrogate", "unexpected end of hex escape"];
            assert!(known.iter().any(|known| error.contains(known)), "{shown}: {error}");
        }
        (Err(error), Ok(_)) => panic!("{shown}: {error}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn valid_documents_are_read_as_by_serde_json(text in documents()) {
        prop_assert!(parse(text.as_bytes()).is_ok());
        check(text.as_bytes());
    }

    #[test]
    fn broken_documents_are_refused_as_by_serde_json(bytes in mutated()) {
        check(&bytes);
    }

    #[test]
    fn any_bytes_are_read_as_by_serde_json(bytes in vec(any::<u8>(), 0..20)) {
        check(&bytes);
    }
}

#[test]
fn strings_are_read_as_by_go() {
    let cases: [(&[u8], &str); 13] = [
        (br#""\ud800""#, "\u{fffd}"),
        (br#""\udc00x""#, "\u{fffd}x"),
        (br#""\ud800\u0041""#, "\u{fffd}A"),
        (br#""\ud800\ud83d\ude00""#, "\u{fffd}\u{1f600}"),
        (br#""\udc00\ud800""#, "\u{fffd}\u{fffd}"),
        (br#""\ud800\n""#, "\u{fffd}\n"),
        (br#""\uD83D\uDE00\u00e9""#, "\u{1f600}é"),
        (br#""\"\\\/\b\f\n\r\t\u0000""#, "\"\\/\u{8}\u{c}\n\r\t\0"),
        (b"\"a\xffb\"", "a\u{fffd}b"),
        // One U+FFFD for each byte.
        (b"\"\xe2\x82\"", "\u{fffd}\u{fffd}"),
        (b"\"\xf0\x9f\x98x\"", "\u{fffd}\u{fffd}\u{fffd}x"),
        (b"\"\xed\xa0\x80\"", "\u{fffd}\u{fffd}\u{fffd}"),
        ("\"\u{7f}\u{2028}\"".as_bytes(), "\u{7f}\u{2028}"),
    ];
    for (bytes, expected) in cases {
        assert_eq!(parse(bytes).unwrap(), expected.into(), "{}", decode(bytes));
    }
}

#[test]
fn keys_may_repeat_and_have_escapes() {
    let json = parse(br#"{"a":1,"\u0061":[2],"":{}}"#).unwrap();
    assert_eq!(json.to_compact(), r#"{"a":1,"a":[2],"":{}}"#);
}

#[test]
fn numbers_keep_their_text() {
    for text in ["-0", "1.0", "1e400", "-1E-5", "123456789012345678901234567890"] {
        let document = format!("{{\"a\":[{text}]}}");
        assert_eq!(parse(document.as_bytes()).unwrap().to_compact(), document);
    }
}

#[test]
fn errors_name_the_reason_and_the_position() {
    let cases = [
        ("", "it is empty"),
        (" \n", "it is empty"),
        ("{", "EOF while parsing an object at line 1 column 1"),
        ("\"a", "EOF while parsing a string at line 1 column 2"),
        ("\"\\", "EOF while parsing a string at line 1 column 2"),
        ("[1\n,2", "EOF while parsing a list at line 2 column 2"),
        ("{\"a\":}", "expected value at line 1 column 6"),
        ("nope", "expected ident at line 1 column 2"),
        ("\u{feff}{}", "expected value at line 1 column 1"),
        ("[1,]", "expected value at line 1 column 4"),
        ("'a'", "expected value at line 1 column 1"),
        ("+1", "expected value at line 1 column 1"),
        ("[1 2]", "expected `,` or `]` at line 1 column 4"),
        ("[1}", "expected `,` or `]` at line 1 column 3"),
        ("{\"a\":1]", "expected `,` or `}` at line 1 column 7"),
        ("{\"a\" 1}", "expected `:` at line 1 column 6"),
        ("{\n  a: 1}", "key must be a string at line 2 column 3"),
        ("{\"a\":1,}", "key must be a string at line 1 column 8"),
        ("[01]", "invalid number at line 1 column 3"),
        ("[-]", "invalid number at line 1 column 3"),
        ("[1.]", "invalid number at line 1 column 4"),
        ("[1e+]", "invalid number at line 1 column 5"),
        ("\"\\x\"", "invalid escape at line 1 column 3"),
        ("\"\\u12g4\"", "invalid escape at line 1 column 7"),
        (
            "\"\t\"",
            "control character (\\u0000-\\u001F) found while parsing a string at line 1 column 1",
        ),
        ("{} x", "trailing characters at line 1 column 4"),
        ("{}\0", "trailing characters at line 1 column 3"),
    ];
    for (text, expected) in cases {
        let error = parse(text.as_bytes()).unwrap_err();
        assert_eq!(error.code, Code::DECODE);
        assert_eq!(error.to_string(), format!("cannot read JSON: {expected}"), "{text}");
    }
}

#[test]
fn values_below_the_last_level_are_kept_as_text() {
    let nested = |levels: usize, inner: &str| {
        parse((["[".repeat(levels).as_str(), inner, &"]".repeat(levels)].concat()).as_bytes())
    };
    let innermost = |mut json: Json| {
        while let Json::Array(mut values) = json {
            json = values.pop().unwrap();
        }
        json
    };
    assert_eq!(innermost(nested(LEVELS_MAX, "5").unwrap()), 5_u32.into());
    let inner = "{ \"a b\\\\\\\" \" : [ \"\\ud800 é\" , [\n1.0 ] ] } , \t{ \"<\" : [{}] }";
    let json = nested(LEVELS_MAX, inner).unwrap();
    assert!(
        json.to_compact().contains(
            "[{ \"a b\\\\\\\" \" : [ \"\\ufffd é\" , [\n1.0 ] ] },{ \"\\u003c\" : [{}] }]"
        )
    );
    assert_eq!(innermost(json), Json::Raw("{ \"<\" : [{}] }".into()));
    for broken in ["[[1}]", "[[1]", "{\"a\":{\"b\"}}", "{\"a\":{b:1}}", "[[1,]]", "[[\"\\x\"]]"] {
        assert!(nested(LEVELS_MAX, broken).is_err(), "{broken}");
    }
}
