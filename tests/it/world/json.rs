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
