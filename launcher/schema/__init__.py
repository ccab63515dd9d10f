"""Define the fields of the JSON files that another process reads; check them and convert them to objects.

`json_conversion` converts dataclasses (`to_json`, `from_json`, `read_fields`); the other modules define the files.
A field with a default, or a field of a TypedDict with `total=False`, may be missing in a file: older launchers did not
write it, or the run has no value for it yet.
"""

from launcher.schema.checkpoint_files import (
    ChainLink,
    CheckpointContents,
    CheckpointFile,
    CheckpointPosition,
    CheckpointRows,
    CheckpointScores,
    CheckpointTable,
    RankFiles,
    ScriptCheckpoint,
)
from launcher.schema.data_files import (
    DataFailure,
    DataFile,
    DataRelease,
    ManifestFile,
    Shard,
    ShardFileEntry,
    ShardFiles,
    SideTable,
)
from launcher.schema.json_conversion import (
    ALWAYS,
    KEY,
    REQUIRED,
    Count,
    FileName,
    from_json,
    is_required,
    mismatch,
    read_fields,
    to_json,
)
from launcher.schema.model_files import (
    ExportedFile,
    ExportMarker,
    ModelDescription,
    ModelLookup,
    ModelTable,
)
from launcher.schema.run_record_and_status import (
    ProgramFile,
    RankStatus,
    RestartRecord,
    RunFile,
    StatusFile,
    TrainerProgress,
)
