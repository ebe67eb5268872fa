//! The layout of disk images: which files the boot loader's stages look for, and where.
//!
//! ```text
//!   sector 0      boot sector of the boot loader (none for UEFI), partition table
//!   from 1 on     BIOS: stage 2, a partition of its own type
//!   after it      a FAT file system: kernel, ramdisk, boot.json
//!                 BIOS: stages 3 and 4; UEFI: efi/boot/bootx64.efi
//! ```

use std::io::{Cursor, Write};

use anyhow::{Context, Result, ensure};

use crate::boot_loader::BootLoader;

const SECTOR: usize = 512;
/// Where the partition table lies in the first sector.
const PARTITION_TABLE: usize = 446;

/// The partition types: one for stage 2 itself, one for the files that stage 2 or the firmware
/// reads.
const TYPE_STAGE_2: u8 = 0x20;
const TYPE_FAT: u8 = 0x0c;
const TYPE_EFI_SYSTEM: u8 = 0xef;

/// Stage 2 reads this much at once, and as much again for each smaller cluster.
const CLUSTER: usize = 16 * 1024;

/// Only the kernel writes to the serial line, and the screen stays as the firmware left it.
const CONFIG: &[u8] = br#"{"frame_buffer_logging": false, "serial_logging": false}"#;

/// Returns the disk on which `loader` finds `kernel` and `ramdisk`.
pub fn layout(loader: &BootLoader, kernel: &[u8], ramdisk: &[u8]) -> Result<Vec<u8>> {
    let common = [
        ("kernel-x86_64", kernel),
        ("ramdisk", ramdisk),
        ("boot.json", CONFIG),
    ];
    match loader {
        BootLoader::Bios {
            boot_sector,
            stage_2,
            stage_3,
            stage_4,
        } => {
            let of_the_loader = [
                ("boot-stage-3", &stage_3[..]),
                ("boot-stage-4", &stage_4[..]),
            ];
            let files = file_system(&[&of_the_loader[..], &common[..]].concat())?;
            disk(boot_sector, &[(TYPE_STAGE_2, stage_2), (TYPE_FAT, &files)])
        }
        BootLoader::Uefi { program } => {
            let of_the_loader = [("efi/boot/bootx64.efi", &program[..])];
            let files = file_system(&[&of_the_loader[..], &common[..]].concat())?;
            let mut no_boot_sector = vec![0; SECTOR];
            no_boot_sector[SECTOR - 2..].copy_from_slice(&[0x55, 0xaa]);
            disk(&no_boot_sector, &[(TYPE_EFI_SYSTEM, &files)])
        }
    }
}

/// Puts `partitions` (type and content) one after the other on a disk that begins with
/// `boot_sector`.
fn disk(boot_sector: &[u8], partitions: &[(u8, &[u8])]) -> Result<Vec<u8>> {
    ensure!(
        boot_sector.len() == SECTOR,
        "the boot sector has {} bytes instead of {SECTOR}",
        boot_sector.len()
    );
    let mut disk = boot_sector.to_vec();
    for (index, (kind, content)) in partitions.iter().enumerate() {
        let entry = PARTITION_TABLE + index * 16;
        let sectors = |bytes: usize| {
            u32::try_from(bytes.div_ceil(SECTOR)).context("a disk image has at most 2 TiB")
        };
        let (start, length) = (sectors(disk.len())?, sectors(content.len())?);
        // Cylinder, head and sector of both ends: the values for "too large".
        let beyond = [0xfe, 0xff, 0xff];
        disk[entry] = 0x80;
        disk[entry + 1..entry + 4].copy_from_slice(&beyond);
        disk[entry + 4] = *kind;
        disk[entry + 5..entry + 8].copy_from_slice(&beyond);
        disk[entry + 8..entry + 12].copy_from_slice(&start.to_le_bytes());
        disk[entry + 12..entry + 16].copy_from_slice(&length.to_le_bytes());
        disk.extend_from_slice(content);
        disk.resize(disk.len().next_multiple_of(SECTOR), 0);
    }
    Ok(disk)
}

/// Returns a FAT file system with `files` (path and content) in it.
fn file_system(files: &[(&str, &[u8])]) -> Result<Vec<u8>> {
    const MIB: usize = 1 << 20;
    let content: usize = files
        .iter()
        .map(|(_, content)| content.len().next_multiple_of(CLUSTER))
        .sum();
    // The tables and directories take far less than that.
    let mut bytes = vec![0; (content + MIB).next_multiple_of(MIB)];
    let options = fatfs::FormatVolumeOptions::new().bytes_per_cluster(CLUSTER as u32);
    fatfs::format_volume(Cursor::new(&mut bytes[..]), options)
        .context("cannot make a file system")?;
    {
        let volume = fatfs::FileSystem::new(Cursor::new(&mut bytes[..]), fatfs::FsOptions::new())
            .context("cannot open the file system")?;
        let root = volume.root_dir();
        for (path, content) in files {
            for (slash, _) in path.match_indices('/') {
                root.create_dir(&path[..slash])?;
            }
            root.create_file(path)?
                .write_all(content)
                .with_context(|| format!("cannot write {path} into the file system"))?;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// The partitions of `disk` by its table: type and content.
    fn partitions(disk: &[u8]) -> Vec<(u8, &[u8])> {
        assert_eq!(disk[SECTOR - 2..SECTOR], [0x55, 0xaa]);
        disk[PARTITION_TABLE..SECTOR - 2]
            .chunks(16)
            .filter(|entry| entry[4] != 0)
            .map(|entry| {
                let number =
                    |at| u32::from_le_bytes(entry[at..at + 4].try_into().unwrap()) as usize;
                let start = number(8) * SECTOR;
                (entry[4], &disk[start..start + number(12) * SECTOR])
            })
            .collect()
    }

    fn file(partition: &[u8], path: &str) -> Vec<u8> {
        let mut partition = partition.to_vec();
        let volume =
            fatfs::FileSystem::new(Cursor::new(&mut partition[..]), fatfs::FsOptions::new())
                .unwrap();
        assert_eq!(volume.cluster_size() as usize, CLUSTER);
        let mut content = Vec::new();
        let mut file = volume.root_dir().open_file(path).unwrap();
        file.read_to_end(&mut content).unwrap();
        content
    }

    fn boot_sector() -> Vec<u8> {
        let mut sector = vec![0x90; SECTOR];
        sector[PARTITION_TABLE..].fill(0);
        sector[SECTOR - 2..].copy_from_slice(&[0x55, 0xaa]);
        sector
    }

    #[test]
    fn a_disk_for_bios_has_all_stages() {
        let loader = BootLoader::Bios {
            boot_sector: boot_sector(),
            stage_2: vec![2; SECTOR + 1],
            stage_3: vec![3; 3],
            stage_4: vec![4; 3 * CLUSTER + 4],
        };
        let kernel = vec![5; (1 << 20) + 5];
        let disk = layout(&loader, &kernel, b"programs").unwrap();
        assert_eq!(disk[..PARTITION_TABLE], [0x90; PARTITION_TABLE]);
        let partitions = partitions(&disk);
        let [(0x20, stage_2), (0x0c, files)] = &partitions[..] else {
            panic!("the partitions are not those of stage 2 and of the files");
        };
        assert_eq!(stage_2.len(), 2 * SECTOR);
        assert_eq!(stage_2[..=SECTOR], [2; SECTOR + 1]);
        assert_eq!(file(files, "boot-stage-3"), [3; 3]);
        assert_eq!(file(files, "boot-stage-4"), [4; 3 * CLUSTER + 4]);
        assert!(file(files, "kernel-x86_64") == kernel);
        assert_eq!(file(files, "ramdisk"), b"programs");
        assert_eq!(file(files, "boot.json"), CONFIG);
    }

    #[test]
    fn a_disk_for_uefi_has_the_program_where_firmware_looks() {
        let loader = BootLoader::Uefi {
            program: vec![1; CLUSTER],
        };
        let disk = layout(&loader, b"kernel", b"").unwrap();
        let partitions = partitions(&disk);
        let [(0xef, files)] = &partitions[..] else {
            panic!("the only partition is not the EFI system partition");
        };
        assert_eq!(file(files, "efi/boot/bootx64.efi"), [1; CLUSTER]);
        assert_eq!(file(files, "kernel-x86_64"), b"kernel");
        assert_eq!(file(files, "ramdisk"), b"");
    }

    #[test]
    fn a_boot_sector_of_another_length_is_refused() {
        let error = disk(&[0; SECTOR + 1], &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the boot sector has 513 bytes instead of 512"
        );
    }
}
