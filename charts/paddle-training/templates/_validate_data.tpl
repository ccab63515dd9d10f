{{/* Where the data comes from and how it is cut. */}}
{{- define "paddle-training.validate.data" -}}
{{- $data := .Values.data -}}
{{- $split := include "paddle-training.splitCount" . -}}
{{- if ne $split (toString (int64 .Values.trainers)) -}}
{{- include "paddle-training.fault" (list "data.splitCount" (int64 $split) (printf "trainers, which is %d," (int64 .Values.trainers)) "each trainer reads exactly one shard" "Leave data.splitCount null, or set it to trainers") -}}
{{- end -}}
{{- $source := $data.source -}}
{{- if not (regexMatch "^(https?://[^/\\s]+/\\S+|s3://[a-z0-9][a-z0-9.-]+(/\\S*)?|file://\\S+)$" $source) -}}
{{- include "paddle-training.fault" (list "data.source" $source "https://…, http://…, s3://BUCKET/PREFIX or file://NAME" "the data Job can read nothing else, and the digest of the data covers it also without that Job" "Set it; a file in the folder sources/ of the shared storage is file://NAME") -}}
{{- else if and (hasPrefix "http://" $source) (not $data.sha256) -}}
{{- include "paddle-training.fault" (list "data.sha256" $data.sha256 "given with an http source" (printf "anybody on the way could change what %s gives" $source) "Set the output of sha256sum, or use https") -}}
{{- else if and (hasPrefix "s3://" $source) $data.member (or (not (regexMatch "^s3://[^/]+/." $source)) (hasSuffix "/" $source)) -}}
{{- include "paddle-training.fault" (list "data.source" $source "s3://BUCKET/KEY of one archive, since data.member is set" "a member lies in exactly one object, and this names a folder" "Name the archive itself, or leave data.member empty to read all text below the prefix") -}}
{{- else if hasPrefix "file://" $source -}}
{{- $name := trimPrefix "file://" $source -}}
{{- if or (hasPrefix "/" $name) (has ".." (splitList "/" $name)) -}}
{{- include "paddle-training.fault" (list "data.source" $source "a path inside the folder sources/ of the shared storage, without '/' in front or '..'" "a pod's own disk has no data" "Put the file into sources/ and name it file://NAME") -}}
{{- end -}}
{{- end -}}
{{- if and $data.sha256 (not (regexMatch "^[0-9a-fA-F]{64}$" $data.sha256)) -}}
{{- include "paddle-training.fault" (list "data.sha256" $data.sha256 "64 hexadecimal digits" "it is compared with the sha256 of the source" "Set the output of sha256sum") -}}
{{- end -}}
{{- $bases := list -}}
{{- range $i, $member := concat (list $data.member) $data.tables -}}
{{- $key := ternary "data.member" "data.tables" (eq $i 0) -}}
{{- if and (or $member (gt $i 0)) (or (eq $member "") (hasPrefix "/" $member) (hasSuffix "/" $member) (has ".." (splitList "/" $member))) -}}
{{- include "paddle-training.fault" (list $key $member "a path inside the archive, without '..' or '/' at either end" "a file outside the archive is never read or written" "Give the path that the archive's list shows") -}}
{{- end -}}
{{- if gt $i 0 -}}
{{- if has (base $member) $bases -}}
{{- include "paddle-training.fault" (list "data.tables" $member "of a file name that no other table has" "all tables lie in one folder" "Remove one of them") -}}
{{- end -}}
{{- $bases = append $bases (base $member) -}}
{{- end -}}
{{- end -}}
{{- $delimiter := include "paddle-training.delimiter" . -}}
{{- if or (and (ne $delimiter "\\t") (not (regexMatch "^.$" $delimiter))) (eq $delimiter "\"") -}}
{{- include "paddle-training.fault" (list "data.delimiter" $data.delimiter "one character, or \\t for a tab, and no quote" "csv fields are cut at it" "Set the character that stands between the fields") -}}
{{- end -}}
{{- if eq $data.format "lines" -}}
{{- if $data.columns -}}
{{- include "paddle-training.fault" (list "data.columns" $data.columns "empty with data.format lines" "lines are passed on byte for byte, so no column is cut out" "Set data.format to csv, or leave columns empty") -}}
{{- end -}}
{{- else if not $data.header -}}
{{- range $data.columns -}}
{{- if kindIs "string" . -}}
{{- include "paddle-training.fault" (list "data.columns" . "an index from 0 with data.header false" "nothing names the columns then" "Give the column's index, or set data.header to true") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $test := $data.testSource -}}
{{- if and $test (not (regexMatch "^(https://[^/\\s]+/\\S+|s3://[a-z0-9][a-z0-9.-]+(/\\S*)?|file://\\S+)$" $test)) -}}
{{- include "paddle-training.fault" (list "data.testSource" $test "https://…, s3://BUCKET/PREFIX or file://NAME" "the data Job can read nothing else" "Set it; a file in the folder sources/ of the shared storage is file://NAME") -}}
{{- end -}}
{{- end -}}
