//! The models of GPUs that machine files refer to by name. They are part of the program, so that a machine file can be
//! anywhere.

use aliquot_machine::Machine;

macro_rules! models {
    ($($name:literal)*) => {
        /// Names and texts.
        pub(crate) const MODELS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../machines/models/", $name, ".yaml")))),*];
    };
}

models! {
    "a100-sxm4-40gb" "a30" "b200" "gb10" "gb200" "h100-sxm-80gb" "h200-sxm-141gb" "l4" "l40s"
    "rtx-pro-6000-server" "t4"
}

/// Adds the models that GPUs refer to and the file doesn't have. Fails with the name of a model.
pub(crate) fn add(machine: &mut Machine) -> Result<(), (String, serde_yaml::Error)> {
    for (name, text) in MODELS {
        if machine.gpus.iter().any(|gpu| gpu.model == *name) && !machine.models.contains_key(*name) {
            let model = serde_yaml::from_str(text).map_err(|error| ((*name).to_owned(), error))?;
            machine.models.insert((*name).to_owned(), model);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_is_in_the_program() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../machines/models");
        let mut names = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap().replace(".yaml", ""))
            .collect::<Vec<_>>();
        names.sort();
        assert_eq!(names, MODELS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }
}
