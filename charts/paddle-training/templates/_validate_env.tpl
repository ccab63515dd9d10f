{{/* A person's own variables: none that something else sets, each given once, and no secret in plain text. */}}
{{- define "paddle-training.validate.env" -}}
{{- $managed := list "TRAIN_CONFIG_DIR" "TRAINER_COUNT" "TRAINING_ROLE" "OUT_DIR" "SPLIT_COUNT" "POD_IP" "HOME" "PATH" "PYTHONPATH" -}}
{{- if eq .Values.runtime "fleet" -}}
{{- $managed = concat $managed (list "OMP_NUM_THREADS" "MKL_NUM_THREADS" "OPENBLAS_NUM_THREADS") -}}
{{- end -}}
{{- $seen := list -}}
{{- range .Values.extraEnv -}}
{{- $key := printf "extraEnv %s" .name -}}
{{- if or (has .name $managed) (regexMatch "^(JOB|PADDLE|CONF_PADDLE|KUBERNETES)_" .name) -}}
{{- include "paddle-training.fault" (list "extraEnv" .name "a name that neither this chart nor the image sets" "the second of two variables of one name wins, unseen" "Remove it, and set the chart's value of that meaning, if there is one") -}}
{{- else if has .name $seen -}}
{{- include "paddle-training.fault" (list "extraEnv" .name "given once" "of two variables of one name only the last would count" "Remove one of them") -}}
{{- end -}}
{{- $seen = append $seen .name -}}
{{- if eq (hasKey . "value") (hasKey . "valueFrom") -}}
{{- include "paddle-training.fault" (list $key (ternary "value and valueFrom" "" (hasKey . "value")) "either value or valueFrom" "a variable has one value" "Give exactly one of them") -}}
{{- else if and (hasKey . "value") (or (has .name (list "AWS_SECRET_ACCESS_KEY" "AWS_SESSION_TOKEN")) (regexMatch "://[^/@\\s]+:[^/@\\s]+@" .value)) -}}
{{- include "paddle-training.fault" (list $key "(not shown)" "given by valueFrom.secretKeyRef" "it holds a secret, and values are plain text in the release and in its Jobs" "Put it into a Secret of this namespace and name that") -}}
{{- end -}}
{{- end -}}
{{- end -}}
