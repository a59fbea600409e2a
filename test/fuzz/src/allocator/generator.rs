//! Random problems for the allocator: small enough that upstream walks through them, with all that the API has.

use serde_json::{Map, Value, json};

use crate::random::Random;

const DRIVERS: [&str; 3] = ["a.example.com", "b.example.com", "c.example.com"];
const SHARE: &str = "bbbbbbbb-bbbb-bbbb-bbbb-bbbbbbbbbbb";

/// What the problem is about; not everything in every problem, or nothing would ever be allocated.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "they are drawn one by one")]
struct Theme {
    capacity: bool,
    counters: bool,
    taints: bool,
    lists: bool,
    groups: bool,
    derived: bool,
    operations: bool,
    admin: bool,
    binding: bool,
    constraints: bool,
    selection: bool,
    broken: bool,
    many: bool,
    errors: bool,
    odd_quantities: bool,
    alternatives: bool,
}

struct Maker<'r> {
    random: &'r mut Random,
    theme: Theme,
    /// Driver, pool and name of each device, and whether it can be shared.
    devices: Vec<(String, String, String, bool)>,
}

/// A problem of both sides' form.
pub(crate) fn problem(seed: u64) -> Value {
    let mut random = Random(seed);
    let random = &mut random;
    let alpha = random.percent(40);
    // Where these meet there is most to get wrong.
    let dense = random.percent(35);
    let theme = Theme {
        capacity: dense || random.percent(30),
        counters: dense || random.percent(35),
        taints: random.percent(25),
        lists: alpha && random.percent(50),
        groups: alpha && random.percent(40),
        derived: alpha && random.percent(40),
        operations: random.percent(15),
        admin: random.percent(25),
        binding: random.percent(20),
        constraints: dense || random.percent(30),
        selection: random.percent(30),
        broken: random.percent(15),
        many: random.percent(12),
        errors: random.percent(12),
        odd_quantities: random.percent(15),
        alternatives: dense || random.percent(25),
    };
    let mut on = |percent: usize| random.percent(percent);
    let features = json!({
        "AdminAccess": on(95), "ConsumableCapacity": on(92), "DeviceBindingAndStatus": on(85), "DeviceTaints": on(90),
        "FractionalCapacityRange": on(70), "PartitionableDevices": on(95), "PrioritizedList": on(97),
        "ListTypeAttributes": theme.lists, "CompatibilityGroups": theme.groups && on(85),
        "DerivedAttributes": theme.derived, "OptionalNodeOperations": alpha && on(60),
    });
    let is_alpha = ["ListTypeAttributes", "CompatibilityGroups", "DerivedAttributes", "OptionalNodeOperations"]
        .iter()
        .any(|name| features[*name] == true);
    let channel = if is_alpha || on(15) { "experimental" } else { "incubating" };
    let mut maker = Maker { random, theme, devices: Vec::new() };
    let slices = maker.slices();
    let classes = maker.classes();
    let existing = maker.existing();
    let claims = maker.claims();
    let declared = if maker.random.percent(60) { json!(["DRAOptionalNodeOperations"]) } else { json!([]) };
    json!({
        "id": seed.to_string(), "channel": channel, "features": features, "timeoutMs": 700,
        "node": {
            "metadata": { "name": "node", "labels": { "zone": "east", "size": "7" } },
            "status": { "declaredFeatures": declared },
        },
        "slices": slices, "classes": classes, "existing": existing, "claims": claims,
    })
}

/// Without what is null, as the API server would have it.
fn object<const N: usize>(entries: [(&str, Value); N]) -> Value {
    let entries = entries.into_iter().filter(|(_, value)| !value.is_null());
    Value::Object(entries.map(|(name, value)| (name.to_owned(), value)).collect())
}

impl Maker<'_> {
    fn slices(&mut self) -> Vec<Value> {
        let mut slices = Vec::new();
        let most = *self.random.one(&[1, 2, 2, 3]);
        let drivers = self.random.between(1, most);
        for driver in DRIVERS.iter().take(drivers) {
            for pool in 0..self.random.between(1, 2) {
                self.pool(driver, &format!("pool-{pool}"), &mut slices);
            }
        }
        if self.random.percent(50) {
            let last = slices.len();
            for index in (1..last).rev() {
                let other = self.random.below(index + 1);
                slices.swap(index, other);
            }
        }
        slices
    }

    fn pool(&mut self, driver: &str, pool: &str, slices: &mut Vec<Value>) {
        let sets = if self.theme.counters { self.random.between(1, 2) } else { 0 };
        let sets: Vec<String> = (0..sets).map(|index| format!("set-{index}")).collect();
        let parts = self.random.between(1, 2);
        let broken = self.theme.broken && self.random.percent(60);
        // All counter sets in one slice, or each in one of its own.
        let apart = sets.len() > 1 && self.random.percent(30);
        let counter_slices = if apart { sets.len() } else { usize::from(!sets.is_empty()) };
        let count = parts + counter_slices;
        let count = if broken && self.random.percent(40) { count + 1 } else { count };
        let generation = self.random.between(1, 2);
        let spec = |slice: usize, maker: &mut Self| {
            let stale = broken && maker.random.percent(20);
            let name = format!("{}-{driver}-{pool}", maker.random.one(&["00000", "00001", "00002"]));
            let mut spec = Map::new();
            spec.insert("driver".into(), driver.into());
            let generation = if stale { generation + 1 } else { generation };
            spec.insert("pool".into(), json!({ "name": pool, "generation": generation, "resourceSliceCount": count }));
            (format!("{name}-{slice}"), spec)
        };
        for index in 0..counter_slices {
            let (name, mut own) = spec(9 - index, self);
            let here = if apart { &sets[index..=index] } else { &sets[..] };
            let counters: Vec<Value> = here
                .iter()
                .map(|set| {
                    let memory = match self.random.below(6) {
                        0 if self.theme.odd_quantities => "3000E".to_owned(),
                        _ => format!("{}Gi", self.random.between(2, 8)),
                    };
                    let cores = self.random.between(1, 7).to_string();
                    json!({ "name": set, "counters": { "memory": { "value": memory }, "cores": { "value": cores } } })
                })
                .collect();
            let twice = broken && self.random.percent(10);
            let counters = if twice { json!([counters[0], counters[0]]) } else { json!(counters) };
            own.insert("sharedCounters".into(), counters);
            self.select_nodes(&mut own);
            slices.push(json!({ "metadata": { "name": name }, "spec": own }));
        }
        let mut next = 0;
        for slice in 0..parts {
            let (name, mut own) = spec(slice, self);
            let per_device = self.theme.selection && self.random.percent(30);
            if per_device {
                own.insert("perDeviceNodeSelection".into(), true.into());
            } else {
                self.select_nodes(&mut own);
            }
            if self.theme.operations && self.random.percent(40) {
                own.insert("skipNodeOperations".into(), json!(["*"]));
            }
            let most = if self.theme.many { 20 } else { 7 };
            let mut devices = Vec::new();
            for _ in 0..self.random.between(0, most) {
                let device = if broken && self.random.percent(5) { 0 } else { next };
                next += 1;
                devices.push(self.device(driver, pool, &format!("dev-{device}"), &sets, per_device, broken));
            }
            own.insert("devices".into(), devices.into());
            slices.push(json!({ "metadata": { "name": name }, "spec": own }));
        }
    }

    fn select_nodes(&mut self, spec: &mut Map<String, Value>) {
        let kind = if self.theme.selection { self.random.below(5) } else { 0 };
        match kind {
            0 => spec.insert("nodeName".into(), "node".into()),
            1 => spec.insert("allNodes".into(), true.into()),
            2 => spec.insert("nodeName".into(), "other".into()),
            _ => spec.insert("nodeSelector".into(), self.node_selector()),
        };
    }

    fn node_selector(&mut self) -> Value {
        let mut term = || match self.random.below(8) {
            0 => json!({ "matchExpressions": [{ "key": "zone", "operator": "NotIn", "values": ["west"] }] }),
            1 => json!({ "matchExpressions": [{ "key": "size", "operator": "Gt", "values": ["5"] }] }),
            2 => json!({ "matchExpressions": [{ "key": "nope", "operator": "DoesNotExist" }] }),
            3 => json!({ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["node"] }] }),
            4 => json!({ "matchExpressions": [{ "key": "zone", "operator": "In", "values": ["west"] }] }),
            _ => json!({ "matchExpressions": [{ "key": "zone", "operator": "In", "values": ["east", "west"] }] }),
        };
        let first = term();
        let second = term();
        if self.random.percent(3) {
            json!({ "nodeSelectorTerms": [first, second] })
        } else {
            json!({ "nodeSelectorTerms": [first] })
        }
    }

    fn device(
        &mut self,
        driver: &str,
        pool: &str,
        name: &str,
        sets: &[String],
        per_device: bool,
        broken: bool,
    ) -> Value {
        let theme = self.theme;
        let shareable = theme.capacity && self.random.percent(60);
        self.devices.push((driver.into(), pool.into(), name.into(), shareable));
        let mut device = Map::new();
        device.insert("name".into(), name.into());
        let mut attributes = Map::new();
        let kind = *self.random.one(&["x", "y", "z"]);
        attributes.insert(
            if self.random.percent(80) { "kind".into() } else { format!("{driver}/kind") },
            json!({ "string": kind }),
        );
        if self.random.percent(85) {
            let numa = self.random.below(3);
            let lists = theme.lists && self.random.percent(50);
            let value = match self.random.below(12) {
                _ if lists => json!({ "ints": [numa, self.random.below(3)] }),
                0 => json!({ "string": numa.to_string() }),
                _ => json!({ "int": numa }),
            };
            attributes.insert("std.example.com/numa".into(), value);
        }
        if self.random.percent(50) {
            attributes.insert("fast".into(), json!({ "bool": self.random.percent(50) }));
        }
        if self.random.percent(20) {
            attributes.insert("model".into(), json!({ "version": *self.random.one(&["1.0.0", "2.0.0"]) }));
        }
        if theme.lists && self.random.percent(40) {
            let value = match self.random.below(3) {
                0 => json!({ "strings": [kind, *self.random.one(&["x", "y"])] }),
                1 => json!({ "bools": [self.random.percent(50)] }),
                _ => json!({ "versions": ["1.0.0", *self.random.one(&["1.0.0", "2.0.0"])] }),
            };
            attributes.insert("std.example.com/links".into(), value);
        }
        device.insert("attributes".into(), attributes.into());
        if theme.capacity && self.random.percent(85) {
            device.insert("capacity".into(), self.capacity());
        }
        if shareable {
            device.insert("allowMultipleAllocations".into(), true.into());
        }
        if !sets.is_empty() && self.random.percent(75) {
            let mut consumptions = vec![self.consumption(sets, broken)];
            if sets.len() > 1 && self.random.percent(15) {
                let other = self.consumption(sets, broken);
                if other["counterSet"] != consumptions[0]["counterSet"] {
                    consumptions.push(other);
                }
            }
            device.insert("consumesCounters".into(), consumptions.into());
        }
        if theme.taints && self.random.percent(40) {
            let taint = |random: &mut Random| {
                let effect = *random.one(&["NoSchedule", "NoExecute", "None"]);
                json!({ "key": *random.one(&["bad", "hot"]), "value": *random.one(&["v", "v", "w"]), "effect": effect })
            };
            let first = taint(self.random);
            let second = self.random.percent(25).then(|| taint(self.random));
            device.insert("taints".into(), second.map_or_else(|| json!([first]), |second| json!([first, second])));
        }
        if theme.binding && self.random.percent(40) {
            device.insert("bindingConditions".into(), json!(["example.com/ready"]));
            device.insert("bindingFailureConditions".into(), json!(["example.com/failed"]));
            device.insert("bindsToNode".into(), self.random.percent(50).into());
        }
        if per_device {
            self.select_nodes(&mut device);
        }
        device.into()
    }

    fn consumption(&mut self, sets: &[String], broken: bool) -> Value {
        let mut counters = Map::new();
        if self.random.percent(85) {
            counters.insert(
                "memory".into(),
                match self.random.below(6) {
                    0 if self.theme.odd_quantities => json!({ "value": "1500E" }),
                    _ => json!({ "value": *self.random.one(&["1Gi", "2Gi", "4Gi", "512Mi", "1024Mi"]) }),
                },
            );
        }
        if counters.is_empty() || self.random.percent(50) {
            counters.insert("cores".into(), json!({ "value": *self.random.one(&["1", "2", "3", "500m"]) }));
        }
        if broken && self.random.percent(5) {
            counters.insert("nope".into(), json!({ "value": "1" }));
        }
        let groups = if self.theme.groups && self.random.percent(60) {
            let mut groups = vec![*self.random.one(&["g", "h", "i"])];
            if self.random.percent(40) {
                groups.push("j");
            }
            json!(groups)
        } else {
            Value::Null
        };
        object([
            ("counterSet", json!(self.random.one(sets))),
            ("counters", counters.into()),
            ("compatibilityGroups", groups),
        ])
    }

    fn quantity(&mut self) -> String {
        let odd = [
            "1.5Gi",
            "0.5",
            "1500m",
            "1e3",
            "3000000000n",
            "-1",
            "20E",
            "1024Mi",
            "0",
            "7500u",
            "12345678901234567890",
        ];
        let usual = ["1Gi", "2Gi", "3Gi", "4Gi", "10Gi", "512Mi", "1", "2", "3", "500m"];
        let is_odd = self.theme.odd_quantities && self.random.percent(30);
        (*self.random.one(if is_odd { &odd[..] } else { &usual[..] })).to_owned()
    }

    fn capacity(&mut self) -> Value {
        let mut all = Map::new();
        for name in ["memory", "a.example.com/width"] {
            if !self.random.percent(70) {
                continue;
            }
            let value = if self.theme.odd_quantities {
                self.quantity()
            } else {
                (*self.random.one(&["4Gi", "10Gi", "8"])).to_owned()
            };
            let policy = match self.random.below(5) {
                0 => {
                    let step = self
                        .random
                        .percent(70)
                        .then(|| (*self.random.one(&["1Gi", "1", "250m", "512Mi", "2"])).to_owned());
                    let max = self.random.percent(40).then(|| (*self.random.one(&["4Gi", "8Gi", "5"])).to_owned());
                    let range = object([
                        ("min", json!(*self.random.one(&["1Gi", "1", "500m", "0"]))),
                        ("step", json!(step)),
                        ("max", json!(max)),
                    ]);
                    json!({ "default": *self.random.one(&["1Gi", "2Gi", "1"]), "validRange": range })
                }
                1 => json!({ "default": "1Gi", "validValues": ["1", "2", "1Gi", "2Gi", "8Gi"] }),
                2 => json!({ "default": self.quantity() }),
                _ => Value::Null,
            };
            all.insert(name.into(), object([("value", value.into()), ("requestPolicy", policy)]));
        }
        all.into()
    }

    fn selector(&mut self) -> Value {
        let driver = *self.random.one(&DRIVERS);
        let expression = if self.theme.errors && self.random.percent(20) {
            match self.random.below(3) {
                0 => format!("device.attributes[\"{driver}\"].fast"),
                1 => "noSuchVariable".to_owned(),
                _ => "device.attributes[\"std.example.com\"].numa == 1".to_owned(),
            }
        } else {
            match self.random.below(8) {
                0 => format!("device.driver == \"{driver}\""),
                4 if self.theme.capacity => "device.allowMultipleAllocations".to_owned(),
                5 if self.theme.capacity => {
                    let quantity = self.quantity();
                    format!(
                        "device.capacity[device.driver].?memory.optMap(m, m.isGreaterThan(quantity(\"{quantity}\"))).orValue(false)"
                    )
                }
                6 if self.theme.lists => {
                    let wanted = self.random.below(3);
                    format!("device.attributes[\"std.example.com\"].?numa.orValue(0).includes({wanted})")
                }
                1 => format!("device.attributes[device.driver].kind == \"{}\"", self.random.one(&["x", "y", "z"])),
                2 => format!("device.attributes[device.driver].kind != \"{}\"", self.random.one(&["x", "y", "z"])),
                _ => format!("device.driver != \"{driver}\""),
            }
        };
        json!({ "cel": { "expression": expression } })
    }

    fn classes(&mut self) -> Vec<Value> {
        let mut classes = Vec::new();
        for name in ["any", "first", "second"] {
            let driver = if name == "first" { DRIVERS[0] } else { DRIVERS[1] };
            let mut selectors = Vec::new();
            if name != "any" {
                selectors.push(json!({ "cel": { "expression": format!("device.driver == \"{driver}\"") } }));
            } else if self.random.percent(20) {
                selectors.push(self.selector());
            }
            let mut config = Vec::new();
            while self.random.percent(25) {
                config.push(
                    json!({ "opaque": { "driver": driver, "parameters": { "class": name, "n": config.len() } } }),
                );
            }
            classes.push(json!({ "metadata": { "name": name }, "spec": { "selectors": selectors, "config": config } }));
        }
        classes
    }

    /// Claims that have some of the devices already.
    fn existing(&mut self) -> Vec<Value> {
        let mut results = Vec::new();
        for (index, (driver, pool, device, shareable)) in self.devices.clone().into_iter().enumerate() {
            if !self.random.percent(15) {
                continue;
            }
            // A device that could be shared later, or not any more.
            let shared = if self.random.percent(5) { !shareable } else { shareable };
            let consumed =
                if shared && self.random.percent(80) { json!({ "memory": self.quantity() }) } else { Value::Null };
            let share = if shared { json!(format!("{SHARE}{}", index % 10)) } else { Value::Null };
            let admin = if self.random.percent(5) { json!(true) } else { Value::Null };
            let result = |share: Value, consumed: Value| {
                object([
                    ("request", json!("r")),
                    ("driver", json!(driver)),
                    ("pool", json!(pool)),
                    ("device", json!(device)),
                    ("shareID", share),
                    ("consumedCapacity", consumed),
                    ("adminAccess", admin.clone()),
                ])
            };
            results.push(result(share, consumed));
            if shared && self.random.percent(40) {
                let capacity = *self.random.one(&["memory", "memory", "a.example.com/width"]);
                let consumed = json!({ capacity: self.quantity() });
                results.push(result(json!(format!("{SHARE}a")), consumed));
            }
        }
        if self.random.percent(10) {
            // Its device has gone.
            results.push(json!({ "request": "r", "driver": DRIVERS[0], "pool": "pool-0", "device": "gone" }));
        }
        let spec = json!({ "devices": { "requests": [] } });
        let status = json!({ "allocation": { "devices": { "results": results } } });
        vec![json!({ "metadata": { "name": "existing" }, "spec": spec, "status": status })]
    }

    fn claims(&mut self) -> Vec<Value> {
        let most = if self.random.percent(70) { 1 } else { 3 };
        (0..self.random.between(1, most)).map(|index| self.claim(index)).collect()
    }

    fn claim(&mut self, index: usize) -> Value {
        let mut requests = Vec::new();
        let mut names = Vec::new();
        let most = *self.random.one(&[1, 2, 3]);
        for request in 0..self.random.between(1, most) {
            let name = format!("r{request}");
            names.push(name.clone());
            let percent = if self.theme.alternatives { 50 } else { 10 };
            if self.random.percent(percent) {
                let mut alternatives = Vec::new();
                for alternative in 0..self.random.between(1, 3) {
                    let mut asked = self.asked(false);
                    asked.insert("name".into(), format!("s{alternative}").into());
                    names.push(format!("{name}/s{alternative}"));
                    alternatives.push(asked);
                }
                requests.push(json!({ "name": name, "firstAvailable": alternatives }));
            } else {
                requests.push(json!({ "name": name, "exactly": self.asked(true) }));
            }
        }
        let mut constraints = Vec::new();
        while self.theme.constraints && constraints.len() < 2 && self.random.percent(60) {
            let attribute = *self.random.one(&[
                "std.example.com/numa",
                "std.example.com/numa",
                "a.example.com/kind",
                "a.example.com/model",
                "x.example.com/derived",
                "std.example.com/links",
            ]);
            let kind = if self.theme.errors && self.random.percent(5) {
                "unknownAttribute"
            } else if self.random.percent(60) {
                "matchAttribute"
            } else {
                "distinctAttribute"
            };
            constraints.push(json!({ kind: attribute, "requests": self.some_of(&names) }));
        }
        let mut config = Vec::new();
        while self.random.percent(25) {
            config.push(json!({
                "requests": self.some_of(&names),
                "opaque": { "driver": DRIVERS[0], "parameters": { "claim": index, "n": config.len() } },
            }));
        }
        let devices = json!({ "requests": requests, "constraints": constraints, "config": config });
        json!({ "metadata": { "name": format!("claim-{index}"), "namespace": "ns" }, "spec": { "devices": devices } })
    }

    fn some_of(&mut self, names: &[String]) -> Vec<String> {
        if self.random.percent(50) {
            return Vec::new();
        }
        let percent = *self.random.one(&[40, 100]);
        names.iter().filter(|_| self.random.percent(percent)).cloned().collect()
    }

    fn asked(&mut self, exactly: bool) -> Map<String, Value> {
        let mut asked = Map::new();
        let classes = ["any", "any", "any", "first", "second"];
        let class = if self.theme.errors && self.random.percent(4) { "nope" } else { *self.random.one(&classes) };
        asked.insert("deviceClassName".into(), class.into());
        let mut selectors = Vec::new();
        while selectors.len() < 2 && self.random.percent(18) {
            selectors.push(self.selector());
        }
        if self.theme.errors && self.random.percent(3) {
            selectors.push(json!({}));
        }
        asked.insert("selectors".into(), selectors.into());
        if self.theme.errors && self.random.percent(3) {
            asked.insert("allocationMode".into(), "Some".into());
        } else if self.random.percent(15) {
            asked.insert("allocationMode".into(), "All".into());
        } else {
            asked.insert("allocationMode".into(), "ExactCount".into());
            let most = if self.theme.many && self.random.percent(40) { 20 } else { *self.random.one(&[1, 1, 2, 3]) };
            asked.insert("count".into(), self.random.between(1, most).into());
        }
        if exactly && self.theme.admin && self.random.percent(40) {
            asked.insert("adminAccess".into(), self.random.percent(85).into());
        }
        if self.theme.taints && self.random.percent(60) {
            let mut tolerations = Vec::new();
            while tolerations.is_empty() || tolerations.len() < 3 && self.random.percent(30) {
                tolerations.push(match self.random.below(6) {
                    0 => json!({ "operator": "Exists" }),
                    1 => json!({ "key": "bad", "operator": "Equal", "value": "v" }),
                    2 => json!({ "key": "hot", "operator": "Exists", "effect": "NoSchedule" }),
                    3 => json!({ "key": "hot", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60 }),
                    4 => json!({ "key": "hot", "value": "v" }),
                    _ => json!({ "key": "bad", "operator": "Equal", "value": "w" }),
                });
            }
            asked.insert("tolerations".into(), tolerations.into());
        }
        if self.theme.capacity && self.random.percent(60) {
            let mut requests = Map::new();
            while requests.is_empty() || requests.len() < 2 && self.random.percent(25) {
                let name = *self.random.one(&["memory", "memory", "a.example.com/width", "width"]);
                requests.insert(name.into(), self.quantity().into());
            }
            asked.insert("capacity".into(), json!({ "requests": requests }));
        }
        if self.theme.derived && self.random.percent(40) {
            let mut derived = Vec::new();
            while derived.is_empty() || derived.len() < 2 && self.random.percent(20) {
                let expression = match self.random.below(10) {
                    0 => "device.attributes[\"std.example.com\"].numa",
                    1 => "device.driver",
                    2 => "device.attributes[\"std.example.com\"].?numa.orValue(7)",
                    3 => "has(device.attributes[device.driver].fast)",
                    4 if self.theme.lists => "[device.driver, device.attributes[device.driver].kind]",
                    5 if self.theme.lists => "device.attributes[\"std.example.com\"].links",
                    6 if self.theme.errors => "device.capacity",
                    _ => "device.attributes[device.driver].kind",
                };
                let name = *self.random.one(&["x.example.com/derived", "a.example.com/kind"]);
                derived.push(json!({ "name": name, "expression": expression }));
            }
            asked.insert("derivedAttributes".into(), derived.into());
        }
        asked
    }
}
