//! What people read about a claim besides kubelet's own events: `status.devices` of a prepared claim, an Event about one that couldn't be.
//!
//! Reports follow kubelet's answer: a pod never waits for them, and a claim is no less prepared without them.

use aliquot_api::ids::{DriverName, PoolName};
use aliquot_device::prepare::PlannedDevice;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::cluster::{ClaimRef, Cluster};
use aliquot_device::hash::sha256;

/// The longest note of an Event (`events.k8s.io/v1`).
const NOTE_MAX: usize = 1024;

/// Tells people about claims.
#[derive(Clone)]
pub(crate) struct Reporter {
    /// The API server.
    pub cluster: Cluster,
    /// Our driver.
    pub driver: DriverName,
    /// This node's pool.
    pub pool: PoolName,
    /// This node.
    pub node: String,
}

impl Reporter {
    /// A claim is prepared.
    pub(crate) async fn prepared(&self, claim: &ClaimRef, devices: &[PlannedDevice]) {
        let now = Time(Timestamp::now());
        let status = |device: &PlannedDevice| self.device_status(device, &now);
        let devices = Value::Array(devices.iter().map(status).collect());
        if let Err(error) = self.cluster.set_claim_devices(claim, &devices).await {
            // The claim may be gone already with its pod.
            if error.is_not_found() || error.is_conflict() {
                tracing::debug!(claim = %claim, %error, "the claim went before its status was set");
            } else {
                tracing::warn!(claim = %claim, claim.uid = %claim.uid, %error, "the claim's status lacks its devices");
            }
        }
    }

    fn device_status(&self, device: &PlannedDevice, now: &Time) -> Value {
        let mut status = json!({
            "driver": self.driver,
            "pool": self.pool,
            "device": device.device,
            "conditions": [{
                "type": "Ready",
                "status": "True",
                "reason": "Prepared",
                "message": format!("prepared on node {}", self.node),
                "lastTransitionTime": now,
            }],
            "data": {"uuid": device.uuid, "pciBusID": device.pci},
        });
        if let Some(share) = &device.share_id {
            status["shareID"] = json!(share);
        }
        status
    }

    /// A claim couldn't be prepared.
    pub(crate) async fn refused(&self, claim: &ClaimRef, reason: &'static str, mut note: String) {
        while note.len() > NOTE_MAX {
            note.pop();
        }
        let name = sha256(format!("{}/{}/{note}", claim.uid, self.node).as_bytes()).split_off(48);
        let event = Event {
            metadata: ObjectMeta {
                name: Some(format!("aliquot-{name}")),
                namespace: Some(claim.namespace.clone()),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(Timestamp::now())),
            type_: Some("Warning".to_owned()),
            reason: Some(reason.to_owned()),
            action: Some("Prepare".to_owned()),
            note: Some(note),
            regarding: Some(ObjectReference {
                api_version: Some("resource.k8s.io/v1".to_owned()),
                kind: Some("ResourceClaim".to_owned()),
                name: Some(claim.name.clone()),
                namespace: Some(claim.namespace.clone()),
                uid: Some(claim.uid.to_string()),
                ..ObjectReference::default()
            }),
            reporting_controller: Some(self.driver.to_string()),
            reporting_instance: Some(self.node.clone()),
            ..Event::default()
        };
        if let Err(error) = self.cluster.create_event(&event).await {
            tracing::warn!(claim = %claim, claim.uid = %claim.uid, %error, "nobody was told why the claim failed");
        }
    }
}
