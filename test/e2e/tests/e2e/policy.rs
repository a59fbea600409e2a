//! A node's plugin may write what is its own node's, and nothing else, whatever its role allows: here with the token of a plugin whose
//! node was taken over.

use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::AuthInfo;
use kube::{Api, Client, Config};
use serde_json::{Value, json};

use crate::harness::{DRIVER, Namespace, eventually, pod, template, test};

const POLICY: &str = "aliquot-kubelet-plugin-own-node";

/// A client that the API server takes for a plugin: bound to its pod, as kubelet asks for it, or to nothing.
async fn client_of(namespace: &Namespace, plugin: &Pod, is_bound: bool) -> Client {
    let place = plugin.metadata.namespace.as_deref().unwrap();
    let account = plugin.spec.as_ref().unwrap().service_account_name.clone().unwrap();
    let bound_object_ref = is_bound.then(|| BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: plugin.metadata.name.clone(),
        uid: plugin.metadata.uid.clone(),
    });
    let request = TokenRequest {
        spec: Some(TokenRequestSpec { bound_object_ref, ..TokenRequestSpec::default() }),
        ..TokenRequest::default()
    };
    let accounts = Api::<ServiceAccount>::namespaced(namespace.client(), place);
    let answer = accounts.create_token_request(&account, &PostParams::default(), &request).await.unwrap();
    let mut config = Config::infer().await.unwrap();
    let token = answer.status.unwrap().token.unwrap();
    config.auth_info = AuthInfo { token: Some(token.into()), ..AuthInfo::default() };
    Client::try_from(config).unwrap()
}

/// Whether RBAC alone would allow it.
async fn is_allowed(client: &Client, resource: &str, verb: &str) -> bool {
    let attributes = ResourceAttributes {
        group: Some("resource.k8s.io".to_owned()),
        resource: Some(resource.to_owned()),
        verb: Some(verb.to_owned()),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let answer = Api::all(client.clone()).create(&PostParams::default(), &review).await.unwrap();
    answer.status.unwrap().allowed
}

fn slice(driver: &str, pool: &str, place: Value) -> ResourceSlice {
    let mut slice = json!({
        "metadata": {"name": "from-a-test"},
        // Outdates what is there.
        "spec": {"driver": driver, "pool": {"name": pool, "generation": 1_000_000, "resourceSliceCount": 1}},
    });
    slice["spec"].as_object_mut().unwrap().extend(place.as_object().unwrap().clone());
    serde_json::from_value(slice).unwrap()
}

async fn slice_of(slices: &Api<ResourceSlice>, node: &str) -> ResourceSlice {
    let of_node = ListParams::default().fields(&format!("spec.nodeName={node},spec.driver={DRIVER}"));
    slices.list(&of_node).await.unwrap().items.into_iter().next().expect("a slice")
}

fn assert_refused<T: std::fmt::Debug>(what: &str, answer: kube::Result<T>, says: &str) {
    let error = match answer {
        Err(kube::Error::Api(error)) => error,
        other => panic!("{what}: {other:?}"),
    };
    assert_eq!(error.code, 403, "{what}: {error}");
    for part in [format!("ValidatingAdmissionPolicy '{POLICY}'").as_str(), says] {
        assert!(error.message.contains(part), "{what}: not {part:?} but {}", error.message);
    }
}

#[test]
fn a_plugin_writes_slices_of_its_own_node_only() {
    test(async |ns| {
        let own_slices = ns.cluster_api::<ResourceSlice>();
        let client = client_of(ns, &ns.plugin_on("node-1").await, true).await;
        for verb in ["create", "update", "delete"] {
            assert!(is_allowed(&client, "resourceslices", verb).await, "it is the policy that refuses to {verb}");
        }
        let slices = Api::<ResourceSlice>::all(client);
        let (real, dry) = (PostParams::default(), PostParams { dry_run: true, ..PostParams::default() });
        let node = "the plugin on node node-1 may write slices with this spec.nodeName only";
        let pool = "the plugin on node node-1 may write slices with this spec.pool.name only";
        let selector = json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]});
        for (what, slice, says) in [
            ("another node", slice(DRIVER, "node-0", json!({"nodeName": "node-0"})), node),
            ("all nodes", slice(DRIVER, "node-1", json!({"allNodes": true})), node),
            ("some nodes", slice(DRIVER, "node-1", json!({"nodeSelector": selector})), node),
            ("each device's nodes", slice(DRIVER, "node-1", json!({"perDeviceNodeSelection": true})), node),
            ("another node's pool", slice(DRIVER, "node-0", json!({"nodeName": "node-1"})), pool),
            (
                "another driver",
                slice("other.example", "node-1", json!({"nodeName": "node-1"})),
                "the plugin may write slices of driver gpu.aliquot.dev only",
            ),
        ] {
            assert_refused(what, slices.create(&real, &slice).await, says);
        }

        let others = slice_of(&slices, "node-0").await;
        let name = others.metadata.name.clone().unwrap();
        let mut emptied = others.clone();
        emptied.spec.devices = None;
        assert_refused("an update", slices.replace(&name, &real, &emptied).await, node);
        assert_refused("a deletion", slices.delete(&name, &DeleteParams::default()).await, node);
        assert_eq!(slice_of(&own_slices, "node-0").await, others);

        let own = slice_of(&slices, "node-1").await;
        let name = own.metadata.name.clone().unwrap();
        slices.create(&dry, &slice(DRIVER, "node-1", json!({"nodeName": "node-1"}))).await.expect("its own node");
        let mut emptied = own.clone();
        emptied.spec.devices = None;
        slices.replace(&name, &dry, &emptied).await.expect("its own slice");
        slices.delete(&name, &DeleteParams::default().dry_run()).await.expect("its own slice");
    });
}

#[test]
fn a_token_of_no_node_writes_no_slices() {
    test(async |ns| {
        let client = client_of(ns, &ns.plugin_on("node-1").await, false).await;
        assert!(is_allowed(&client, "resourceslices", "create").await);
        let slices = Api::<ResourceSlice>::all(client);
        let new = slice(DRIVER, "node-1", json!({"nodeName": "node-1"}));
        let says = "the token isn't that of a pod on a node";
        assert_refused("a new slice", slices.create(&PostParams::default(), &new).await, says);
        let there = slice_of(&slices, "node-1").await.metadata.name.unwrap();
        assert_refused("a deletion", slices.delete(&there, &DeleteParams::default()).await, says);
    });
}

#[test]
fn the_policy_is_understood_and_nobody_elses_concern() {
    test(async |ns| {
        let warnings = eventually("the policy's types are checked", async || {
            let policy = ns.cluster_api::<ValidatingAdmissionPolicy>().get(POLICY).await.unwrap();
            let status = policy.status.filter(|status| status.observed_generation == policy.metadata.generation)?;
            status.type_checking
        })
        .await;
        assert_eq!(warnings.expression_warnings, None);

        let slices = ns.cluster_api::<ResourceSlice>();
        let theirs = slice("other.example", "anywhere", json!({"allNodes": true}));
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        slices.create(&dry, &theirs).await.expect("an administrator's slice");
    });
}

#[test]
fn a_plugin_reports_on_claims_of_its_own_node_only() {
    test(async |ns| {
        ns.apply(&(template("one", "") + &pod("user", Some("node-1"), &["main"], &["gpu=one"])));
        ns.running("user").await;
        let device = &ns.allocated("user", "gpu").await[0];
        let claims = ns.api::<ResourceClaim>().list(&ListParams::default()).await.unwrap();
        let claim = claims.items[0].metadata.name.as_deref().unwrap();
        let device =
            json!({"driver": DRIVER, "pool": device.pool, "device": device.device, "data": {"from": "a test"}});
        let report = Patch::Merge(json!({"status": {"devices": [device]}}));
        let dry = PatchParams { dry_run: true, ..PatchParams::default() };

        let place = ns.api::<ResourceClaim>().get(claim).await.unwrap().metadata.namespace.unwrap();
        let as_plugin = async |node: &str| client_of(ns, &ns.plugin_on(node).await, true).await;
        let own = Api::<ResourceClaim>::namespaced(as_plugin("node-1").await, &place);
        own.patch_status(claim, &dry, &report).await.expect("its own node's claim");
        let freed = Patch::Merge(json!({"status": {"allocation": null}}));
        let error = own.patch_status(claim, &dry, &freed).await.unwrap_err().to_string();
        assert!(error.contains("resourceclaims/binding"), "{error}");

        let others = Api::<ResourceClaim>::namespaced(as_plugin("node-0").await, &place);
        let error = others.patch_status(claim, &dry, &report).await.unwrap_err().to_string();
        assert!(error.contains("resourceclaims/driver"), "{error}");

        let event: Event = serde_json::from_value(json!({
            "metadata": {"name": "from-a-test", "namespace": place},
            "eventTime": "2026-01-01T00:00:00.000000Z",
            "action": "Prepare", "reason": "Test", "type": "Warning", "note": "from a test",
            "reportingController": DRIVER, "reportingInstance": "node-1",
            "regarding": {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "namespace": place, "name": claim},
        }))
        .unwrap();
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        Api::namespaced(as_plugin("node-1").await, &place).create(&dry, &event).await.expect("an event");
    });
}
