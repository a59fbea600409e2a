//! Generates the services from `proto/`. protox compiles them, so that no protoc has to be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = ["registration.proto", "dra_v1.proto", "dra_v1beta1.proto", "health_v1.proto", "health_v1alpha1.proto"];
    let files = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure().btree_map(".").compile_fds(files)?;
    Ok(())
}
