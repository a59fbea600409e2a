//! What the plugin asks of the API server. Every call ends within a bound: kubelet waits 45 seconds for us, no longer.

use std::fmt;
use std::time::Duration;

use aliquot_api::ids::{ClaimUid, IdError};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::{DeleteParams, GetParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// How long one call may take.
const CALL: Duration = Duration::from_secs(10);

/// Who we are where fields have owners.
const FIELD_MANAGER: &str = "aliquot-kubelet-plugin";

/// A call to the API server failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterError {
    /// It answered with an error, or not in our language.
    #[error("{call}: {cause}")]
    Api {
        /// What was called.
        call: String,
        /// What it said.
        #[source]
        cause: Box<kube::Error>,
    },
    /// It didn't answer.
    #[error("{call}: no answer from the API server within {} s", CALL.as_secs())]
    Timeout {
        /// What was called.
        call: String,
    },
    /// The claim that kubelet means was deleted, and another has its name now.
    #[error("claim {claim} now has UID {found}: it was deleted and made again")]
    MadeAgain {
        /// The claim that kubelet means.
        claim: ClaimRef,
        /// The UID of the one with its name.
        found: String,
    },
}

impl ClusterError {
    fn status(&self) -> Option<&kube::core::Status> {
        match self {
            Self::Api { cause, .. } => match cause.as_ref() {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            Self::Timeout { .. } | Self::MadeAgain { .. } => None,
        }
    }

    /// Whether there is no such object.
    pub(crate) fn is_not_found(&self) -> bool {
        self.status().is_some_and(kube::core::Status::is_not_found)
    }

    /// Whether somebody else changed the object first.
    pub(crate) fn is_conflict(&self) -> bool {
        self.status().is_some_and(|status| status.is_conflict() || status.is_already_exists())
    }

    /// Whether the server may answer if asked again: it is away, starting, or has too much to do.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Api { cause, .. } => match cause.as_ref() {
                kube::Error::Api(status) => status.code == 429 || status.code >= 500,
                kube::Error::HyperError(_) | kube::Error::Service(_) => true,
                _ => false,
            },
            Self::Timeout { .. } => true,
            Self::MadeAgain { .. } => false,
        }
    }

    /// Whether the server said something about the claim, in contrast to nothing at all.
    pub(crate) fn is_about_the_claim(&self) -> bool {
        self.is_not_found() || matches!(self, Self::MadeAgain { .. })
    }
}

/// A claim as kubelet names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClaimRef {
    /// The claim and no other of its name.
    pub uid: ClaimUid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl ClaimRef {
    /// Parses what kubelet sent.
    pub(crate) fn parse(uid: &str, namespace: String, name: String) -> Result<Self, IdError> {
        Ok(Self { uid: uid.parse()?, namespace, name })
    }
}

impl fmt::Display for ClaimRef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

/// Whether what the server's cache has is good enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// It is, if it is an allocated claim.
    Cached,
    /// It isn't.
    Latest,
}

/// The API server.
#[derive(Clone)]
pub(crate) struct Cluster {
    client: Client,
}

impl Cluster {
    /// Behind `client`, which must not retry by itself: it would outlast our bound.
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Connects with the pod's service account, or a kubeconfig where there is none.
    pub(crate) async fn connect() -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let mut config = kube::Config::infer().await?;
        config.default_retry = false;
        config.connect_timeout = Some(CALL);
        Ok(Self::new(Client::try_from(config)?))
    }

    /// The client, for watching.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// The claim that kubelet means, allocated. The server's cache is asked first, which is quick and may lag behind.
    pub(crate) async fn claim(&self, claim: &ClaimRef, freshness: Freshness) -> Result<ResourceClaim, ClusterError> {
        if freshness == Freshness::Latest {
            return self.get_claim(claim, &GetParams::default()).await;
        }
        let cached = self.get_claim(claim, &GetParams { resource_version: Some("0".to_owned()) }).await;
        let is_allocated =
            |claim: &ResourceClaim| claim.status.as_ref().is_some_and(|status| status.allocation.is_some());
        match cached {
            Ok(found) if is_allocated(&found) => Ok(found),
            Err(error) if !error.is_about_the_claim() => Err(error),
            Ok(_) | Err(_) => self.get_claim(claim, &GetParams::default()).await,
        }
    }

    async fn get_claim(&self, claim: &ClaimRef, params: &GetParams) -> Result<ResourceClaim, ClusterError> {
        let api = Api::<ResourceClaim>::namespaced(self.client(), &claim.namespace);
        let found = bounded(|| format!("get claim {claim}"), api.get_with(&claim.name, params)).await?;
        match &found.metadata.uid {
            Some(uid) if uid == claim.uid.as_str() => Ok(found),
            uid => Err(ClusterError::MadeAgain { claim: claim.clone(), found: uid.clone().unwrap_or_default() }),
        }
    }

    /// Sets our part of a claim's `status.devices`.
    pub(crate) async fn set_claim_devices(&self, claim: &ClaimRef, devices: &Value) -> Result<(), ClusterError> {
        let api = Api::<ResourceClaim>::namespaced(self.client(), &claim.namespace);
        // The UID makes it this claim and no later one of its name.
        let patch = json!({
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
            "status": {"devices": devices},
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let call = || format!("set the devices in the status of claim {claim}");
        bounded(call, api.patch_status(&claim.name, &params, &Patch::Apply(patch))).await.map(|_| ())
    }

    /// Tells people about a claim. The same event under the same name is told once.
    pub(crate) async fn create_event(&self, event: &Event) -> Result<(), ClusterError> {
        let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
        let api = Api::<Event>::namespaced(self.client(), namespace);
        match bounded(|| "create an event".to_owned(), api.create(&PostParams::default(), event)).await {
            Err(error) if !error.is_conflict() => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// The UID of a Node.
    pub(crate) async fn node_uid(&self, name: &str) -> Result<String, ClusterError> {
        let api = Api::<Node>::all(self.client());
        let node = bounded(|| format!("get node {name}"), api.get(name)).await?;
        Ok(node.metadata.uid.unwrap_or_default())
    }

    /// Creates a slice.
    pub(crate) async fn create_slice(&self, slice: &ResourceSlice) -> Result<ResourceSlice, ClusterError> {
        let (api, name) = (Api::all(self.client()), slice.metadata.name.as_deref().unwrap_or_default());
        bounded(|| format!("create slice {name}"), api.create(&PostParams::default(), slice)).await
    }

    /// Replaces a slice, if it still is what `slice` was made from.
    pub(crate) async fn update_slice(&self, slice: &ResourceSlice) -> Result<ResourceSlice, ClusterError> {
        let (api, name) = (Api::all(self.client()), slice.metadata.name.as_deref().unwrap_or_default());
        bounded(|| format!("update slice {name}"), api.replace(name, &PostParams::default(), slice)).await
    }

    /// Deletes a slice, if it still is this one.
    pub(crate) async fn delete_slice(&self, name: &str, uid: &str) -> Result<(), ClusterError> {
        let api = Api::<ResourceSlice>::all(self.client());
        let this = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let params = DeleteParams::default().preconditions(this);
        match bounded(|| format!("delete slice {name}"), api.delete(name, &params)).await {
            Err(error) if !error.is_not_found() => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

async fn bounded<T>(
    call: impl Fn() -> String,
    answer: impl Future<Output = kube::Result<T>>,
) -> Result<T, ClusterError> {
    match tokio::time::timeout(CALL, answer).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(cause)) => Err(ClusterError::Api { call: call(), cause: Box::new(cause) }),
        Err(_) => Err(ClusterError::Timeout { call: call() }),
    }
}
