//! `AdmissionReview` of `admission.k8s.io/v1`, as far as it is needed.

use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};
use serde_json::Value;

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Question {
    api_version: String,
    kind: String,
    request: Request,
}

/// What somebody wants to do.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Request {
    /// Which request the answer is for.
    pub uid: String,
    /// The kind of the object.
    pub kind: GroupKind,
    /// `status`, for example; the object itself has none.
    pub sub_resource: Option<String>,
    /// The object's namespace. The object itself needn't have it yet.
    pub namespace: Option<String>,
    /// `CREATE`, for example.
    pub operation: String,
    /// As it shall be.
    #[serde(default)]
    pub object: Value,
    /// As it is.
    #[serde(default)]
    pub old_object: Value,
}

/// The kind of an object, in whatever version.
#[derive(Debug, Deserialize)]
pub(crate) struct GroupKind {
    /// Empty: the core group.
    #[serde(default)]
    pub group: String,
    /// The kind.
    pub kind: String,
}

impl Request {
    /// Reads a review. What can't be read has its answer already.
    pub(crate) fn read(body: &[u8]) -> Result<Self, Answer> {
        let whole: Value =
            serde_json::from_slice(body).map_err(|error| Answer::malformed("", &format!("not JSON: {error}")))?;
        let uid = whole.pointer("/request/uid").and_then(Value::as_str).unwrap_or_default().to_owned();
        let question: Question =
            serde_json::from_value(whole).map_err(|error| Answer::malformed(&uid, &error.to_string()))?;
        if question.api_version != API_VERSION || question.kind != KIND {
            let found = format!("{} of {} is not known", question.kind, question.api_version);
            return Err(Answer::malformed(&uid, &format!("{found}; expected {KIND} of {API_VERSION}")));
        }
        Ok(question.request)
    }

    /// Whether this is about an object itself, of this kind.
    pub(crate) fn is_of(&self, group: &str, kind: &str) -> bool {
        self.kind.group == group && self.kind.kind == kind && self.sub_resource.as_ref().is_none_or(String::is_empty)
    }
}

/// The answer to a review; serialized, it is what the API server reads.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    api_version: &'static str,
    kind: &'static str,
    response: Response,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    uid: String,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Box<Status>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<ByteString>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Status {
    code: u16,
    reason: &'static str,
    message: String,
}

impl Answer {
    fn new(uid: &str, status: Option<Status>, patch: Option<ByteString>) -> Self {
        let patch_type = patch.is_some().then_some("JSONPatch");
        let response = Response {
            uid: uid.to_owned(),
            allowed: status.is_none(),
            status: status.map(Box::new),
            patch_type,
            patch,
        };
        Self { api_version: API_VERSION, kind: KIND, response }
    }

    pub(crate) fn allowed(request: &Request) -> Self {
        Self::new(&request.uid, None, None)
    }

    pub(crate) fn patched(request: &Request, patch: &Value) -> Self {
        Self::new(&request.uid, None, Some(ByteString(patch.to_string().into_bytes())))
    }

    pub(crate) fn refused(request: &Request, message: String) -> Self {
        Self::new(&request.uid, Some(Status { code: 422, reason: "Invalid", message }), None)
    }

    fn malformed(uid: &str, reason: &str) -> Self {
        let message = format!("the review can't be read: {reason}");
        Self::new(uid, Some(Status { code: 400, reason: "BadRequest", message }), None)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    pub(crate) fn review(group: &str, kind: &str, operation: &str, object: &Value, old: &Value) -> Vec<u8> {
        let request = json!({
            "uid": "uid-1", "kind": {"group": group, "version": "v1", "kind": kind}, "operation": operation,
            "namespace": "team", "object": object, "oldObject": old, "dryRun": true,
        });
        json!({"apiVersion": API_VERSION, "kind": KIND, "request": request}).to_string().into_bytes()
    }

    /// Whether it is allowed, the patch, and the message.
    pub(crate) fn read(answer: &Answer) -> (bool, Option<Value>, String) {
        let response = &answer.response;
        let patch = response.patch.as_ref().map(|patch| serde_json::from_slice(&patch.0).unwrap());
        (response.allowed, patch, response.status.as_ref().map(|status| status.message.clone()).unwrap_or_default())
    }

    pub(crate) fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-z./]{0,8}".prop_map(Value::from),
            Just(json!("gpu.aliquot.dev")),
        ];
        let key = prop_oneof![
            "[a-zA-Z]{0,6}",
            Just("spec".to_owned()),
            Just("devices".to_owned()),
            Just("config".to_owned()),
            Just("opaque".to_owned()),
            Just("driver".to_owned()),
            Just("parameters".to_owned()),
            Just("resourceClaims".to_owned()),
            Just("resourceClaimName".to_owned()),
            Just("schedulingGates".to_owned()),
        ];
        leaf.prop_recursive(6, 64, 5, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(key.clone(), inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    #[test]
    fn an_answer_is_what_the_api_server_reads() {
        let request = Request::read(&review("", "Pod", "CREATE", &json!({}), &Value::Null)).unwrap();
        assert_eq!(
            serde_json::to_value(Answer::patched(&request, &json!([]))).unwrap(),
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {
                "uid": "uid-1", "allowed": true, "patchType": "JSONPatch", "patch": "W10=",
            }})
        );
        assert_eq!(
            serde_json::to_value(Answer::refused(&request, "no".to_owned())).unwrap()["response"],
            json!({"uid": "uid-1", "allowed": false, "status": {"code": 422, "reason": "Invalid", "message": "no"}})
        );
    }

    #[test]
    fn what_is_no_review_is_refused_with_its_uid_if_it_has_one() {
        let other = json!({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {
            "uid": "uid-1", "kind": {"kind": "Pod"}, "operation": "CREATE",
        }});
        for (body, uid, says) in [
            ("{".to_owned(), "", "not JSON"),
            ("[]".to_owned(), "", "the review can't be read"),
            (json!({"request": {"uid": "uid-1"}}).to_string(), "uid-1", "missing field"),
            (json!({"request": {"uid": 1}}).to_string(), "", "invalid type"),
            (other.to_string(), "uid-1", "AdmissionReview of admission.k8s.io/v1beta1 is not known; expected"),
        ] {
            let answer = Request::read(body.as_bytes()).unwrap_err();
            assert_eq!(answer.response.uid, uid, "{body}");
            assert!(!answer.response.allowed, "{body}");
            assert!(read(&answer).2.contains(says), "{body}: {}", read(&answer).2);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(body in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(Request::read(&body).is_err());
        }

        #[test]
        fn any_json_is_answered(body in any_json()) {
            prop_assert!(Request::read(body.to_string().as_bytes()).is_err());
        }
    }
}
