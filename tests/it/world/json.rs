//! Small things to do with JSON values.

use serde_json::Value;

/// `base` with the keys of `more` laid over it; objects are merged, everything else is replaced.
pub fn with(base: &Value, more: Value) -> Value {
    match (base, more) {
        (Value::Object(base), Value::Object(more)) => {
            let mut merged = base.clone();
            for (key, value) in more {
                let value = with(merged.get(&key).unwrap_or(&Value::Null), value);
                merged.insert(key, value);
            }
            Value::Object(merged)
        }
        (_, more) => more,
    }
}

/// `base` without a top-level key.
pub fn without(base: &Value, key: &str) -> Value {
    let mut rest = base.clone();
    rest.as_object_mut().unwrap().remove(key);
    rest
}

/// The places of all texts, numbers and flags, as the tables of keys have them: `ranges[][].subnet`, `exclude[]`.
pub fn leaves(value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    add_leaves(value, "", &mut found);
    found
}

fn add_leaves(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                let dot = if at.is_empty() { "" } else { "." };
                add_leaves(value, &format!("{at}{dot}{key}"), found);
            }
        }
        Value::Array(items) => {
            items.iter().for_each(|item| add_leaves(item, &format!("{at}[]"), found));
        }
        _ => found.push(at.to_owned()),
    }
}
