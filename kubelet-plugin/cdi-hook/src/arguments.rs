//! The command line. Everything on it comes from a CDI spec of ours.

use std::{ffi::OsString, path::PathBuf};

use crate::{
    rootfs::{ContainerPath, PathError},
    symlinks::{Link, LinkError},
};

pub(crate) const USAGE: &str = "\
Usage, as a createContainer hook with the OCI state on stdin:
  aliquot-cdi-hook create-symlinks --link TARGET::LINK [--link TARGET::LINK ...]
      makes LINK in the container, a symbolic link to TARGET
  aliquot-cdi-hook update-ldcache [--ldconfig PATH] --folder FOLDER [--folder FOLDER ...]
      makes the container's dynamic loader find the libraries in FOLDER; PATH is the host's ldconfig
  aliquot-cdi-hook --help";

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    CreateSymlinks { links: Vec<Link> },
    UpdateLdcache { ldconfig: Option<PathBuf>, folders: Vec<ContainerPath> },
    Help,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ArgumentError {
    #[error("no command is given")]
    NoCommand,
    #[error("command {0:?} is not known")]
    UnknownCommand(String),
    #[error("{command}: {argument:?} is not known")]
    Unknown { command: &'static str, argument: String },
    #[error("{command}: {option} needs a value")]
    NoValue { command: &'static str, option: &'static str },
    #[error("{command}: at least one {option} is needed")]
    Missing { command: &'static str, option: &'static str },
    #[error("--ldconfig {path:?} is not an absolute path")]
    Ldconfig { path: PathBuf },
    #[error("--folder {path:?}: {error}")]
    Folder { path: String, error: PathError },
    #[error("--folder {path:?} has a character that a loader configuration can't hold")]
    FolderCharacter { path: String },
    #[error("--link {text:?}: {error}")]
    Link { text: String, error: LinkError },
    #[error("argument {0:?} is not UTF-8")]
    NotUtf8(OsString),
}

pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, ArgumentError> {
    let arguments = arguments.into_iter().map(|a| a.into_string().map_err(ArgumentError::NotUtf8));
    let mut arguments = arguments.collect::<Result<Vec<_>, _>>()?.into_iter();
    match arguments.next().as_deref() {
        None => Err(ArgumentError::NoCommand),
        Some("create-symlinks") => create_symlinks(arguments),
        Some("update-ldcache") => update_ldcache(arguments),
        Some("--help" | "-h") => Ok(Command::Help),
        Some(other) => Err(ArgumentError::UnknownCommand(other.to_owned())),
    }
}

fn create_symlinks(mut arguments: impl Iterator<Item = String>) -> Result<Command, ArgumentError> {
    let command = "create-symlinks";
    let mut links = Vec::new();
    while let Some(argument) = arguments.next() {
        if argument != "--link" {
            return Err(ArgumentError::Unknown { command, argument });
        }
        let text = arguments.next().ok_or(ArgumentError::NoValue { command, option: "--link" })?;
        links.push(text.parse().map_err(|error| ArgumentError::Link { text, error })?);
    }
    if links.is_empty() {
        return Err(ArgumentError::Missing { command, option: "--link" });
    }
    Ok(Command::CreateSymlinks { links })
}

fn update_ldcache(mut arguments: impl Iterator<Item = String>) -> Result<Command, ArgumentError> {
    let command = "update-ldcache";
    let (mut ldconfig, mut folders) = (None, Vec::new());
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--ldconfig" => {
                let value = arguments.next().ok_or(ArgumentError::NoValue { command, option: "--ldconfig" })?;
                let path = PathBuf::from(value);
                if !path.is_absolute() {
                    return Err(ArgumentError::Ldconfig { path });
                }
                ldconfig = Some(path);
            }
            "--folder" => {
                let path = arguments.next().ok_or(ArgumentError::NoValue { command, option: "--folder" })?;
                folders.push(folder(path)?);
            }
            _ => return Err(ArgumentError::Unknown { command, argument }),
        }
    }
    if folders.is_empty() {
        return Err(ArgumentError::Missing { command, option: "--folder" });
    }
    Ok(Command::UpdateLdcache { ldconfig, folders })
}

fn folder(path: String) -> Result<ContainerPath, ArgumentError> {
    // ldconfig splits its configuration at these, and has a meaning for `folder=type`.
    if path.contains(|c: char| c.is_whitespace() || matches!(c, '#' | ':' | ',' | '=')) {
        return Err(ArgumentError::FolderCharacter { path });
    }
    path.parse().map_err(|error| ArgumentError::Folder { path, error })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_text(text: &str) -> Result<Command, String> {
        parse(text.split(' ').filter(|a| !a.is_empty()).map(OsString::from)).map_err(|e| e.to_string())
    }

    /// What specs of released versions hold. A line may be added, none may be changed or removed.
    #[test]
    fn what_older_specs_ask_for_is_understood_for_ever() {
        assert_eq!(
            parse_text("create-symlinks --link libcuda.so.1::/usr/lib64/libcuda.so --link b::/c"),
            Ok(Command::CreateSymlinks {
                links: vec![
                    Link { target: "libcuda.so.1".into(), path: "/usr/lib64/libcuda.so".parse().unwrap() },
                    Link { target: "b".into(), path: "/c".parse().unwrap() },
                ]
            })
        );
        assert_eq!(
            parse_text("update-ldcache --ldconfig /sbin/ldconfig --folder /usr/lib64 --folder /opt/lib"),
            Ok(Command::UpdateLdcache {
                ldconfig: Some("/sbin/ldconfig".into()),
                folders: vec!["/usr/lib64".parse().unwrap(), "/opt/lib".parse().unwrap()]
            })
        );
        assert_eq!(
            parse_text("update-ldcache --folder /usr/lib64"),
            Ok(Command::UpdateLdcache { ldconfig: None, folders: vec!["/usr/lib64".parse().unwrap()] })
        );
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        for (arguments, message) in [
            ("", "no command is given"),
            ("chmod", r#"command "chmod" is not known"#),
            ("create-symlinks", "create-symlinks: at least one --link is needed"),
            ("create-symlinks --link", "create-symlinks: --link needs a value"),
            ("create-symlinks --link a::/b --mode 1", r#"create-symlinks: "--mode" is not known"#),
            ("create-symlinks --link a", r#"--link "a": it is not TARGET::LINK"#),
            ("create-symlinks --link ::/b", r#"--link "::/b": the target is empty"#),
            ("create-symlinks --link a::b", r#"--link "a::b": it is not an absolute path"#),
            ("create-symlinks --link a::/b/../c", r#"--link "a::/b/../c": it has a `.` or `..`"#),
            ("create-symlinks --link a::/", r#"--link "a::/": the link has no name"#),
            ("update-ldcache --ldconfig /sbin/ldconfig", "update-ldcache: at least one --folder is needed"),
            ("update-ldcache --ldconfig sbin/ldconfig", r#"--ldconfig "sbin/ldconfig" is not an absolute path"#),
            ("update-ldcache --folder lib", r#"--folder "lib": it is not an absolute path"#),
            (
                "update-ldcache --folder /a:/b",
                r#"--folder "/a:/b" has a character that a loader configuration can't hold"#,
            ),
            ("update-ldcache /lib", r#"update-ldcache: "/lib" is not known"#),
        ] {
            assert_eq!(parse_text(arguments), Err(message.to_owned()), "{arguments}");
        }
    }
}
